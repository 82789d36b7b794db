"""Kill the quickstart at random moments with SIGKILL, resume it, and compare with an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.figures import arguments, figure, show, write

QUICK = {"train_problems": 60, "test_problems": 20, "samples": 16}
TIMES = ("timings.json", ".lock")
LOAD = "from surefoot.models import load_prm; load_prm('lab')"
"""What a command that continues does again before it works."""
RUN = "run"
"""Both runs have this name, each in a folder of its own, for reports say how they were made."""


def start(folder: Path, config: Path) -> subprocess.Popen[bytes]:
    """The command under test, in a session of its own."""
    command = [sys.executable, "-m", "surefoot", "quickstart", "--out", RUN, "--config", str(config)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def finish(folder: Path, config: Path) -> Path:
    """Run the command to its end; its directory."""
    if code := start(folder, config).wait():
        raise SystemExit(f"the quickstart in {folder} ended with {code}")
    return folder / RUN


def digests(folder: Path) -> dict[str, str]:
    """Hash of every file's content, times left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.name not in TIMES and not name.endswith("manifest.json"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "as many kills of a smaller quickstart")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path("runs/kill_resume"))
    options = parser.parse_args()
    undisturbed, killed = (options.out.resolve() / name for name in ("undisturbed", "killed"))
    for folder in (undisturbed, killed):
        folder.mkdir(parents=True, exist_ok=True)
    config = undisturbed.parent / "config.json"
    config.write_text(json.dumps(QUICK if options.quick else {}))
    started = time.monotonic()
    reference = finish(undisturbed, config)
    length = time.monotonic() - started
    subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True)
    start_s = time.monotonic() - started - length
    rng = random.Random(options.seed)
    moments = sorted(rng.uniform(0.02, 0.98) * length for _ in range(options.kills))
    done, kills = 0.0, 0
    for moment in moments:
        process = start(killed, config)
        try:
            process.wait(timeout=max(1.0, moment - done) + (start_s if kills else 0.0))
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills, done = kills + 1, moment
            print(f"killed at about {moment:.0f} s of {length:.0f} s", flush=True)
    expected, found = digests(reference), digests(finish(killed, config))
    differing = sorted(
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )
    print(f"{kills} kills, {len(expected)} files compared, {len(differing)} differ {differing}")
    figures = show([figure("differing_files", len(differing), "files")])
    write(options, figures, kills=kills, files=len(expected), seconds=round(length, 1))
    sys.exit(bool(differing) or 2 * kills < options.kills)  # a faster run ends before its last moments


if __name__ == "__main__":
    main()
