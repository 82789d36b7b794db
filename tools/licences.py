"""Check that every package of the bill of materials has a licence that this project may be used with.

    python tools/licences.py build/sbom.cdx.json

Exit status 1: a package has another licence, or states none, and is not an exception.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ALLOWED = re.compile(
    r"\b(?:0BSD|AFL|Apache|BSD|Boost|BSL|CC0|CNRI|HPND|ISC|MIT|Mozilla|MPL|PSF|Python|Unlicense|Zlib|ZPL)",
    re.IGNORECASE,
)
"""Names of permissive licences, and of the MPL, which covers its own files alone."""
EXCEPTIONS = {
    "cuda-toolkit": "NVIDIA's package without files that names others; it states no licence",
    "psycopg": "LGPL-3.0, imported unchanged and replaceable; only servers with PostgreSQL need it",
    "psycopg-binary": "as psycopg",
}
"""Packages with another licence, and why they may be used."""
_NVIDIA = re.compile(r"nvidia-|cuda-")
"""NVIDIA's libraries, which PyTorch needs on its devices: proprietary, and free to use and to pass on."""


def licences(component: Mapping[str, Any]) -> list[str]:
    """The licences of a component as SPDX expressions, identifiers or names, by the file or the package."""
    entries = [entry.get("license", {}) | entry for entry in component.get("licenses", [])]
    stated = [entry.get("expression") or entry.get("id") or entry.get("name") for entry in entries]
    if not any(stated):  # free text, which the file leaves out
        with suppress(PackageNotFoundError):
            stated = [metadata(component["name"])["License"]]
    return [text.rpartition("::")[2].strip().partition("\n")[0] for text in stated if text]


def is_allowed(stated: str) -> bool:
    """Whether one of the alternatives of an expression is allowed, in all its parts."""
    alternatives = re.split(r"\s+OR\s+", stated.strip("()"))
    return any(
        all(ALLOWED.search(part) for part in re.split(r"\s+AND\s+", re.sub(r" WITH \S+", "", choice)))
        for choice in alternatives
    )


def faults(components: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each package that may not be used."""
    lines = []
    for component in components:
        name = component["name"].lower().replace("_", "-")
        stated = licences(component)
        if name not in EXCEPTIONS and not _NVIDIA.match(name) and not any(map(is_allowed, stated)):
            lines.append(
                f"{name} {component.get('version', '')}: {'; '.join(stated)[:100] or 'states no licence'}"
            )
    return lines


def main() -> int:
    """Check the file that the command line names."""
    components = json.loads(Path(sys.argv[1]).read_text())["components"]
    lines = faults(components)
    print("\n".join(lines) or f"{len(components)} packages, all with an allowed licence or an exception")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
