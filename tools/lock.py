"""Write requirements.lock and requirements-cuda.lock: all that `make setup` installs, with hashes.

    python tools/lock.py                     # keeps the versions that are locked and still allowed
    python tools/lock.py --upgrade           # the newest; options are those of `uv pip compile`
    python tools/lock.py --pip '--extra-index-url URL'

The hashes are those of all builds of a version that the package index lists, so the files hold on every
platform that has wheels. A build of PyTorch from elsewhere (for the CPU alone) has the version of the
ordinary one and other hashes: those that pip finds with the options in ``--pip`` are added, and stay until
the version changes. Such a hash is believed when it is first seen; look at it in the diff.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK, CUDA = ROOT / "requirements.lock", ROOT / "requirements-cuda.lock"
EXTRAS = (
    "dev",
    "models",
    "guard",
    "evaluation",
    "data",
    "gguf",
    "train",
    "server",
    "postgres",
    "ray",
    "pydantic-ai",
    "openai-agents",
    "langgraph",
    "docs",
)
PYTHONS = ("3.11", "3.12", "3.13")

_CUDA = re.compile(r"(nvidia|cuda|triton)\b")
_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_HEAD = """\
# {}
# Written by `make lock`; `make setup` installs nothing whose hash is not here.
"""


def blocks(text: str) -> list[str]:
    """The requirements of a lock file, each with its continued lines."""
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    return re.findall(r"^\S.*(?:\n .*)*", lines, re.MULTILINE)


def with_hashes(block: str, extra: set[str]) -> str:
    """The requirement with further hashes, all in order."""
    hashes = sorted({*_HASH.findall(block), *extra})
    head = block.split("\\\n", 1)[0].rstrip()
    return " \\\n".join([head, *(f"    --hash=sha256:{digest}" for digest in hashes)])


def kept(block: str, before: list[str]) -> set[str]:
    """Hashes that the same version of the same package had before."""
    pin = _PIN.match(block)
    same = [b for b in before if (old := _PIN.match(b)) and pin and old.groups() == pin.groups()]
    return {digest for b in same for digest in _HASH.findall(b)}


def compiled(before: str, options: list[str]) -> str:
    """What uv resolves for all platforms at once; versions in ``before`` are preferred."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "all.txt"
        output.write_text(before, "utf-8")
        extras = [part for extra in EXTRAS for part in ("--extra", extra)]
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--generate-hashes",
        ]
        command += ["--python-version", PYTHONS[0], "--no-header", "--no-annotate", *extras, *options]
        subprocess.run([*command, "-o", str(output), "pyproject.toml"], cwd=ROOT, check=True)  # noqa: S603
        return output.read_text("utf-8")


def found(requirement: str, python: str, options: list[str]) -> set[str]:
    """The hash of the build that pip would install here, for one version of Python; none without a build."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--quiet",
    ]
    command += ["--report", "-", "--target", "unused", "--only-binary", ":all:", "--python-version", python]
    done = subprocess.run([*command, *options, requirement], stdout=subprocess.PIPE, check=False)  # noqa: S603
    if done.returncode:
        print(f"note: no build of {requirement} for Python {python}", file=sys.stderr)
        return set()
    return {
        part["download_info"]["archive_info"]["hashes"]["sha256"]
        for part in json.loads(done.stdout)["install"]
    }


def main() -> None:
    """Resolve, add the hashes of other builds of PyTorch, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pip", default="", help="options for pip that name an index of CPU builds")
    arguments, options = parser.parse_known_args()
    before = "".join(path.read_text("utf-8") for path in (LOCK, CUDA) if path.exists())
    packages = blocks(compiled(before, options))
    place = next(i for i, block in enumerate(packages) if block.startswith("torch=="))
    requirement = re.split(r"[\s;]", packages[place], maxsplit=1)[0]
    builds = [found(requirement, python, shlex.split(arguments.pip)) for python in PYTHONS]
    packages[place] = with_hashes(packages[place], kept(packages[place], blocks(before)).union(*builds))
    for path, title, cuda in (
        (LOCK, f"The package and its extras {', '.join(EXTRAS)}.", False),
        (CUDA, "What PyTorch needs beside requirements.lock where its build is one for CUDA.", True),
    ):
        part = [block for block in packages if bool(_CUDA.match(block)) is cuda]
        path.write_text(_HEAD.format(title) + "\n".join(part) + "\n", "utf-8")


if __name__ == "__main__":
    main()
