"""The wheel and the deployment files: what a user installs has all that it needs, and starts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from surefoot.cli import load_settings
from surefoot.cli.parser import SettingsCommand

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *arguments: str) -> str:
    """Output of Python with the unpacked wheel in place of this checkout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=installed.parent,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(installed: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "src/surefoot"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    missing = [name for name in tracked if not (installed / Path(name).relative_to("src")).is_file()]
    assert missing == []


def test_readmes_lines_run_from_the_wheel(installed: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    lines, expected = re.findall(
        r"```python\n(from surefoot import load_prm.*?)```\n\n```text\n(.*?)```", readme, re.S
    )[0]
    script = installed.parent / "readme.py"
    script.write_text(lines + "import surefoot\nprint(surefoot.__file__)\n")
    *shown, file = run(installed, str(script)).splitlines()
    assert Path(file).is_relative_to(installed)
    assert shown == expected.splitlines()


def test_readmes_command_runs_from_the_wheel(installed: Path) -> None:
    shown = run(installed, "-m", "surefoot", "inspect", str(ROOT / "examples/gsm8k.jsonl"))
    assert "A step is called wrong in 3 of 4 traces" in " ".join(shown.split())


def test_the_options_of_the_deployment_exist() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    serve, *options = services["server"]["command"]
    command = SettingsCommand(serve, load_settings(serve))
    known = {option for parameter in command.params for option in parameter.opts}
    assert {option.partition("=")[0] for option in options} <= known
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    copied = re.search(r"^COPY ((?:\S+ )+)\./$", dockerfile, re.M)
    assert copied
    assert all((ROOT / name).exists() for name in copied[1].split())
    [extras] = re.findall(r"surefoot-\*\.whl\)\[([\w,-]+)\]", dockerfile)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
