"""The lock: complete, hashed, without hosts; and a package that is not what it says is not installed."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import lock  # noqa: E402 - a script has no package

NOT_LOCKED = {"trl"}
"""Extras for other programs, which bring what no test needs."""


@pytest.fixture(scope="module")
def blocks():
    return [b for path in (lock.LOCK, lock.CUDA) for b in lock.blocks(path.read_text("utf-8"))]


def test_every_package_is_pinned_with_hashes_and_no_host_is_named(blocks):
    assert len(blocks) > 150
    for block in blocks:
        assert re.match(r"[\w.-]+==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+$", block), block
    assert "://" not in lock.LOCK.read_text() + lock.CUDA.read_text()


def test_the_lock_has_what_the_project_asks_for(blocks):
    pins = {canonicalize_name(r.name): r for b in blocks for r in [Requirement(b.split(" \\")[0])]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(lock.EXTRAS) == set(project["optional-dependencies"]) - NOT_LOCKED
    asked = [*project["dependencies"]]
    for extra in lock.EXTRAS:
        asked += project["optional-dependencies"][extra]
    for wanted in map(Requirement, asked):
        if wanted.name == "surefoot":  # an extra that brings another
            continue
        (pin,) = pins[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), f"{wanted} is not {pin}: run make lock"


def test_hashes_of_other_builds_stay_while_the_version_does():
    before = lock.blocks(
        f"# head\ntorch==2.0 \\\n    --hash=sha256:{'a' * 64}\nnumpy==1 \\\n    --hash=sha256:{'b' * 64}\n"
    )
    same, newer = (
        f"torch=={v} ; python_version < '4' \\\n    --hash=sha256:{'c' * 64}" for v in ("2.0", "2.1")
    )
    assert lock.kept(same, before) == {"a" * 64}
    assert lock.kept(newer, before) == set()
    merged = lock.with_hashes(same, {"a" * 64})
    assert merged.splitlines()[0] == "torch==2.0 ; python_version < '4' \\"
    assert [line.split(":")[1][0] for line in merged.splitlines()[1:]] == ["a", "c"]


def wheel(folder: Path) -> Path:
    """The smallest package that pip installs."""
    path = folder / "tinything-1.0-py3-none-any.whl"
    info = "tinything-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinything.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.skipif(shutil.which("make") is None, reason="GNU Make is not installed")
def test_setup_refuses_a_package_that_was_changed(tmp_path):
    package = wheel(tmp_path)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "requirements.lock").write_text(f"tinything==1.0 --hash=sha256:{digest}\n")
    (tmp_path / "requirements-cuda.lock").write_text("")
    target = tmp_path / "installed"
    command = ["make", "setup", f"BIN={Path(sys.executable).parent}", "VENV=absent"]
    command += [f"PIP_ARGS=--no-index --find-links {tmp_path} --target {target}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE"))}

    # the first of the commands that make would run
    (install,) = [
        line
        for line in subprocess.run(
            [*command, "--dry-run"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        if line.endswith("-r requirements.lock")
    ]
    subprocess.run(install.split(), cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (target / "tinything.py").exists()

    shutil.rmtree(target)
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("tinything_evil.py", "")
    refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not target.exists()
