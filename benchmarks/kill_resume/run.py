"""Kill the quickstart at random moments with SIGKILL, resume it, and compare with an undisturbed run.

    python -m benchmarks.kill_resume.run [--quick] [--kills 10] [--reference DIR] [--out DIR] [--json FILE]

The moments are drawn evenly over the length of the undisturbed run. Every file must be equal byte for
byte, apart from the times (``timings.json``, ``seconds`` in ``summary.json``, ``manifest.json``, ``done/``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

QUICK = {"train_problems": 60, "rollouts": 2, "test_problems": 20, "test_samples": 16, "shard": 10}
TIMES = ("timings.json", "manifest.json", ".lock")


def command(out: Path, config: Path) -> list[str]:
    """The command under test."""
    return [sys.executable, "-m", "surefoot", "quickstart", "--out", str(out), "--config", str(config)]


def digests(folder: Path) -> dict[str, str]:
    """Hash of every file's content, times left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name in TIMES or name.startswith("done/"):
            continue
        content = path.read_bytes()
        if name == "summary.json":
            content = json.dumps({k: v for k, v in json.loads(content).items() if k != "seconds"}).encode()
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="as many kills of a smaller quickstart")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument(
        "--reference",
        type=Path,
        help="a finished run of the same sizes, made with SOURCE_DATE_EPOCH=1700000000",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/kill_resume"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"
    options.out.mkdir(parents=True, exist_ok=True)
    config = options.out / "config.json"
    config.write_text(json.dumps(QUICK if options.quick else {}))
    reference, disturbed = options.reference or options.out / "undisturbed", options.out / "killed"
    subprocess.run(command(reference, config), check=True, stdout=subprocess.DEVNULL)
    length = json.loads((reference / "summary.json").read_text())["seconds"]["total"]
    rng = random.Random(options.seed)
    moments = sorted(rng.uniform(0.02, 0.98) * length for _ in range(options.kills))
    done, kills = 0.0, 0
    for moment in moments:
        process = subprocess.Popen(
            command(disturbed, config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=max(1.0, moment - done) + (8.0 if kills else 0.0))  # 8 s: start-up again
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills, done = kills + 1, moment
            print(f"killed at about {moment:.0f} s of {length:.0f} s", flush=True)
    subprocess.run(command(disturbed, config), check=True, stdout=subprocess.DEVNULL)
    expected, found = digests(reference), digests(disturbed)
    differing = sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )
    print(f"{kills} kills, {len(expected)} files compared, {len(differing)} differ {differing}")
    if options.json:
        figure = {
            "name": "differing_files",
            "value": len(differing),
            "unit": "files",
            "ratio": None,
            "low": None,
            "high": None,
        }
        setting = {
            "kills": kills,
            "files": len(expected),
            "seconds": round(length, 1),
            "quick": options.quick,
        }
        options.json.write_text(json.dumps({"figures": [figure], "setting": setting}, indent=2) + "\n")
    sys.exit(bool(differing) or kills < options.kills)


if __name__ == "__main__":
    main()
