"""``surefoot audit transfer``: train domains against test domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.audit import _inputs as i

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Case

Sets = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="Labelled set, as DOMAIN=DIR with problems, traces and labels (as `convert` writes them), or "
        "DOMAIN=FILE in ProcessBench's format. May be repeated.",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="A step below this is an error; else fitted on half of the scorer's own domain, and that half "
        "of every set is not reported.",
    ),
]


def transfer(
    scorers: i.Scorers,
    sets: Sets,
    out: i.Out,
    threshold: Threshold = None,
    limit: i.Limit = None,
    draws: i.Draws = 1000,
    seed: i.Seed = 0,
    device: i.Device = "cpu",
) -> None:
    """Measure each scorer on each domain: AUC of steps, and F1 of the first error.

    A scorer's NAME is the domain it was trained on, a set's the domain it comes from; where the two are
    equal, a threshold is fitted. A file of stored scores must have those of all sets.

    Example: `surefoot audit transfer gsm8k=prm-gsm8k math=prm-math --set gsm8k=gsm8k.json --set math=math/
    --out audit`
    """
    settings = dict(locals())
    from surefoot.cli.audit._write import leave
    from surefoot.evaluation.audits import audit_transfer
    from surefoot.evaluation.audits.sections import transfer_section

    subjects = i.open_subjects(scorers, aggregate="min", partial=True, device=device)
    domains = {name: i.recorded(_cases(path, limit, seed), subjects) for name, path in _named(sets).items()}
    audit = audit_transfer(
        {subject.name: subject for subject in subjects},
        domains,
        threshold=threshold,
        draws=draws,
        seed=seed,
    )
    leave("transfer", [transfer_section(audit)], {"transfer": audit}, settings, out)


def _named(sets: list[str]) -> dict[str, str]:
    from surefoot.errors import RunError

    found: dict[str, str] = {}
    for text in sets:
        name, equals, path = text.partition("=")
        if not (name and equals and path) or name in found:
            raise RunError(f"--set {text}: give DOMAIN=DIR or DOMAIN=FILE, each domain once")
        found[name] = path
    return found


def _cases(path: str, limit: int | None, seed: int) -> list[Case]:
    from pathlib import Path

    from surefoot.errors import RunError
    from surefoot.io.files import ENDINGS

    folder = Path(path)
    if folder.is_file():
        return i.read_cases(None, None, None, [path], limit=limit, seed=seed)
    files = {}
    for name in ("problems", "traces", "labels"):
        found = [folder / f"{name}{ending}" for ending in ENDINGS if (folder / f"{name}{ending}").is_file()]
        if not found:
            raise RunError(f"{path}: no {name}.jsonl in it; make the directory with `surefoot convert`")
        files[name] = str(found[0])
    return i.read_cases(files["problems"], files["traces"], files["labels"], None, limit=limit, seed=seed)
