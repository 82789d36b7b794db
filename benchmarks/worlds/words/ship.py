"""Write trained models into the package: ``python -m benchmarks.worlds.words.ship --policy DIR --prm DIR …``.

The weights become bfloat16, half the size. ``config.json`` says float32, so that they are loaded as float32
where nothing else is asked for. What training left besides (its state, losses and manifest) stays where it
is; ``recipe.json`` has its settings and its inputs' checksums.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.worlds.words.tokens import build_words_tokenizer
from surefoot.lab import ORM, POLICY, PRM, LabVerifier
from surefoot.models.card import CARD, HEAD, TRAINING_PROBLEMS, read_card, write_card

MODEL, CONFIG, RECIPE = "model.safetensors", "config.json", "recipe.json"
COPIED = ("generation_config.json", HEAD, TRAINING_PROBLEMS)


def ship(trained: Path, shipped: Path) -> None:
    """Write the checkpoint in ``trained`` to the empty or absent directory ``shipped``."""
    shutil.rmtree(shipped, ignore_errors=True)
    shipped.mkdir(parents=True)
    weights = {name: weight.to(torch.bfloat16) for name, weight in load_file(trained / MODEL).items()}
    save_file(weights, shipped / MODEL, metadata={"format": "pt"})
    config = read(trained / CONFIG) | {"dtype": "float32"}
    write(shipped / CONFIG, config)
    build_words_tokenizer().save_pretrained(shipped)
    for name in COPIED:
        if (trained / name).is_file():
            shutil.copyfile(trained / name, shipped / name)
    write(shipped / RECIPE, recipe(trained))
    if (trained / CARD).is_file():
        card = read_card(trained)
        source = LabVerifier.name if card.kind == "prm" else card.label_source
        write_card(shipped, card.model_copy(update={"base": "surefoot-lab-policy", "label_source": source}))
    for path in shipped.iterdir():
        path.chmod(0o644)


def recipe(trained: Path) -> dict[str, Any]:
    """How a model was trained: the policy's own record, or what the command wrote down."""
    if not (trained / CARD).is_file():
        return read(trained / RECIPE)
    manifest = read(trained / "manifest.json")
    inputs = {name: facts["sha256"] for name, facts in manifest["inputs"].items()}
    settings = manifest["config"] | {"base": "lab"}
    return {"command": f"surefoot {manifest['command']}", "settings": settings, "inputs": inputs}


def read(path: Path) -> dict[str, Any]:
    """A JSON object."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def write(path: Path, content: dict[str, Any]) -> None:
    """A JSON object, indented."""
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("policy", "prm", "orm"):
        parser.add_argument(f"--{name}", type=Path, help=f"directory of the trained {name}")
    options = parser.parse_args()
    for trained, shipped in ((options.policy, POLICY), (options.prm, PRM), (options.orm, ORM)):
        if trained is not None:
            ship(trained, shipped)


if __name__ == "__main__":
    main()
