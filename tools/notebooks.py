"""Run the notebooks of ``docs/notebooks`` and store what their cells print: ``python tools/notebooks.py``.

The cells of a notebook share one namespace and an empty folder. A line that begins with ``!`` is a command,
as in Jupyter, which this does not need.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
_COMMAND = re.compile(r"^!(.*)$", re.M)
_PROGRESS = re.compile(r"^.* after [0-9:]+(, about [0-9:]+ left)?\n", re.M)
"""Lines that depend on the machine's speed."""


def _run(command: str) -> None:
    """Print what ``command`` prints. Raises ``RuntimeError`` with it if the command fails."""
    # the commands of this environment, whether it is activated or not
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(  # noqa: S602 - the cells are ours, and pipes are part of a shell's language
        command,
        shell=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": path},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}")
    print(_PROGRESS.sub("", done.stdout), end="")


def executed(notebook: dict[str, Any]) -> list[str]:
    """What each code cell prints, in order, in a new folder. An error of a cell is raised."""
    names: dict[str, Any] = {"__name__": "__main__", "_run": _run}
    printed = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                code = _COMMAND.sub(lambda found: f"_run({found[1]!r})", "".join(cell["source"]))
                with redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, cell["id"], "exec"), names)  # noqa: S102
                printed.append(out.getvalue())
    return printed


def stored(notebook: dict[str, Any]) -> list[str]:
    """What the file says that each code cell prints."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in cells]


def as_markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page: code and what it prints in fences."""
    printed, parts = iter(stored(notebook)), []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            # the site highlights no commands in Python
            language = "text" if _COMMAND.search(source) else "python"
            parts += [f"```{language}\n{source}\n```", f"```text\n{next(printed)}```"]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run all and write them."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, (cell, text) in enumerate(zip(cells, executed(notebook), strict=True), start=1):
            output = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            cell |= {"execution_count": number, "outputs": [output] if text else []}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(path)


if __name__ == "__main__":
    main()
