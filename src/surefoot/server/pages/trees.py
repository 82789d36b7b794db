"""Search trees that unfold, from files written by ``surefoot search --trees`` below the runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.io import ReadReport, read_records
from surefoot.io.sources import ENDINGS
from surefoot.search.saved_tree import SavedTree
from surefoot.server.pages.access import SiteReader, Visitor, pages_of
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.render import show, twin
from surefoot.server.pages.score_strip import strip

router = APIRouter()

_NODES = 4_000
"""Nodes per page; of a larger tree only the first are shown, and the page says so."""
_LIST = 100
_DEPTH: Final = 5
_FOLDERS: Final = 2_000
"""Folders that are searched for files of trees."""
_NAME: Final = re.compile(r"[A-Za-z0-9_=+,@][A-Za-z0-9_=+,@.-]{0,199}", re.ASCII)
_MOST_NAMES: Final = 8


@twin(router, "/trees")
def tree_files(request: Request, visitor: SiteReader) -> Response:
    """Files of trees below the directory of runs."""
    root = pages_of(request).settings.runs
    data = {
        "configured": root is not None,
        "files": [
            {"name": name, "link": f"/tree-list?{urlencode({'file': name})}"} for name in _tree_names(root)
        ],
    }
    return show(request, visitor, "tree_files.html", data, extra={"query": ""})


@twin(router, "/tree-list")
def tree_list(request: Request, visitor: SiteReader) -> Response:
    """The trees of one file."""
    name, start = query_of(request).required_id("file"), query_of(request).natural("start")
    report = ReadReport()
    trees = read_records(_file(request, name), SavedTree, report=report)
    page = list(islice(trees, start, start + _LIST + 1))
    data = {
        "file": name,
        "trees": [
            {
                "link": f"/tree?{urlencode({'file': name, 'number': start + index})}",
                "problem_id": tree.problem_id,
                "problem": tree.problem[:200],
                "method": tree.method,
                "answer": tree.answer,
                "outcome": tree.outcome,
                "nodes": len(tree.nodes) - 1,
            }
            for index, tree in enumerate(page[:_LIST])
        ],
        "skipped": report.bad_count,
        "next": f"?{urlencode({'file': name, 'start': start + _LIST})}" if len(page) > _LIST else None,
    }
    extra = {"query": urlencode({"file": name, "start": start})}
    return show(request, visitor, "trees.html", data, extra=extra)


@twin(router, "/tree")
def tree_page(request: Request, visitor: SiteReader) -> Response:
    """One tree, unfolded along the chosen solution."""
    name, number = query_of(request).required_id("file"), query_of(request).natural("number")
    trees = read_records(_file(request, name), SavedTree, report=ReadReport())
    tree = next(islice(trees, number, None), None)
    if tree is None:
        raise NotFoundError(f"the file does not have a tree number {number}")
    about = {"file": name, "number": number}
    link = f"/tree-list?{urlencode({'file': name})}"
    return show_tree(request, visitor, tree, about, back=(link, "trees of this file"))


def show_tree(
    request: Request, visitor: Visitor, tree: SavedTree, about: Mapping[str, Any], *, back: tuple[str, str]
) -> Response:
    """The page of a tree; ``about`` are its query parameters, ``back`` a link and its text."""
    extra = {
        "query": urlencode(about),
        "rows": outline(tree),
        "left_out": max(0, len(tree.nodes) - _NODES),
        "back": back,
    }
    return show(request, visitor, "tree.html", {**about, "tree": tree}, extra=extra)


def outline(tree: SavedTree) -> list[dict[str, Any]]:
    """The tree as a flat list of opening and closing entries, so that the template does not recurse."""
    below = tree.children
    cells = strip([node.score for node in tree.nodes])
    chosen = set(tree.chosen)
    rows: list[dict[str, Any]] = []
    todo: list[int | None] = [child for child in reversed(below[0]) if child < _NODES]
    while todo:
        node_id = todo.pop()
        if node_id is None:
            rows.append({"close": True})
            continue
        inner = [child for child in reversed(below[node_id]) if child < _NODES]
        node = {**tree.nodes[node_id].model_dump(), "bucket": cells[node_id]["bucket"]}
        rows.append({"close": False, "node": node, "chosen": node_id in chosen, "children": len(inner)})
        if inner:
            todo += [None, *inner]
    return rows


def _file(request: Request, name: str) -> Path:
    """A file of trees. Raises ``StoreError`` for one that is too large or has another ending."""
    settings = pages_of(request).settings
    path = _path_below(settings.runs, name)
    if not path.is_file():
        raise NotFoundError(f"'{name}' does not exist")
    if not path.name.endswith(ENDINGS):
        raise StoreError(f"'file' must end in one of {', '.join(ENDINGS)}")
    if path.stat().st_size > settings.max_file_bytes:
        raise StoreError(f"'{name}' is larger than {settings.max_file_bytes} bytes")
    return path


def _tree_names(root: Path | None) -> list[str]:
    """Files below ``root`` named ``*trees*`` with a known ending; hidden folders and links are skipped."""
    names: list[str] = []
    if root is None or not root.is_dir():
        return names
    for count, (folder, below, files) in enumerate(os.walk(root, followlinks=False), start=1):
        parts = Path(folder).relative_to(root).parts
        below[:] = sorted(name for name in below if not name.startswith(".")) if len(parts) < _DEPTH else []
        names += ["/".join((*parts, name)) for name in files if "trees" in name and name.endswith(ENDINGS)]
        if count >= _FOLDERS:
            break
    return sorted(names)


def _path_below(root: Path | None, name: str) -> Path:
    """The file or directory called ``name`` below ``root``.

    Raises ``StoreError`` for a name that is not a plain relative path, ``NotFoundError`` for one that does
    not exist or links outside ``root``; neither reveals anything about what lies outside.
    """
    parts = name.split("/")
    if len(parts) > _MOST_NAMES or not all(_NAME.fullmatch(part) for part in parts):
        raise StoreError("'file' must be names of letters, digits and . _ = + , @ - separated by '/'")
    missing = NotFoundError(f"'{name}' does not exist")
    if root is None:
        raise missing
    try:
        base = root.resolve(strict=True)
        path = base.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise missing from error
    if not path.is_relative_to(base):
        raise missing
    return path
