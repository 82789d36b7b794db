"""LeRobot data sets with images (``meta/info.json``; versions 2 and 3): each episode of a robot is a run.

The task and the first frame are the user's message. The recorded action of each frame is a call of ``act``;
its result is the reward of this frame with the state and the images of the next one. Numbers stay as they
are: nothing here controls a robot, or scales an action.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ChatRows, ImportContext, ImportedTrace, require_object, row_note, run_of
from surefoot.formats.rows import finite, raw_rows
from surefoot.images import stored
from surefoot.records import Attachment, as_json

_INFO: Final = "meta/info.json"
_COUNTS: Final = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


def is_lerobot(path: Path) -> bool:
    """Whether a folder is a data set of LeRobot."""
    return (path / _INFO).is_file()


def read_lerobot(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per episode; one whose frames are not those that its metadata state is rejected.

    Raises ``RecordError`` for cameras in video files, which are not decoded here.
    """
    folder = Path(path)
    info = require_object(next((row for _, row in raw_rows(folder / _INFO)), None), _INFO)
    features: dict[str, Any] = dict(require_object(info.get("features"), "'features'"))
    kinds = {name: require_object(feature, name).get("dtype") for name, feature in features.items()}
    if videos := [name for name, kind in kinds.items() if kind == "video"]:
        raise RecordError(
            f"{folder}: {', '.join(videos)} are video files, which are not decoded here; extract their "
            "frames into a data set whose features have the dtype 'image'"
        )
    tasks = {  # version 3 has their texts in the index of a table
        str(row.get("task_index")): next((text for text in row.values() if isinstance(text, str)), "")
        for row in _metadata(folder, "tasks")
    }
    lengths = {str(row.get("episode_index")): row.get("length") for row in _metadata(folder, "episodes")}
    frames = (row for file in sorted(folder.glob("data/**/*.parquet")) for _, row in raw_rows(file))
    action = "action" if "action" in kinds else "actions"
    cameras = [name for name, kind in kinds.items() if kind == "image"]
    begun: set[str] = set()
    numbers = [name for name in kinds if name not in _COUNTS and name not in (action, *cameras)]

    def build(_: int, episode: tuple[int, Iterable[Mapping[str, Any]]]) -> Iterator[ImportedTrace]:
        number, rows = episode
        chat, count, task = ChatRows(), 0, ""
        rewards: dict[str, Any] = {}
        if str(number) in begun:
            raise RecordError(f"episode {number} begins a second time: keep the frames of each in one place")
        begun.add(str(number))
        for count, frame in enumerate(rows, start=1):
            for name in (action, *numbers):
                finite(frame[name], of=f"episode {number}: frame {count - 1}: '{name}'")
            images = [_image(frame[name], folder, context) for name in cameras]
            seen = {name: frame[name] for name in numbers if not name.startswith("next.")}
            if count == 1:
                if not (task := tasks.get(str(frame["task_index"]), "")):
                    raise RecordError(f"episode {number}: meta/tasks lack task {frame['task_index']}")
                chat.add({"role": "user", "content": f"{task}\n{as_json(seen)}", "attachments": images})
            else:
                chat.result(f"{number}.{count - 1}", as_json(rewards | seen))
                chat.rows[-1]["attachments"] = images
            if (frame["episode_index"], frame["frame_index"]) != (number, count - 1):
                raise RecordError(f"episode {number}: frame {count - 1} is missing")
            chat.call("act", _named(frame[action], features[action]), f"{number}.{count}")
            rewards = {name: frame[name] for name in numbers if name.startswith("next.")}
        chat.result(f"{number}.{count}", as_json(rewards))
        if (stated := lengths.get(str(number)) or "no length") != count:
            raise RecordError(f"episode {number} has {count} frames, and its metadata say {stated}")
        yield run_of(
            chat.rows,
            context,
            row_note("lerobot", number),
            task=task,
            source=folder.resolve().name,
            id=f"{folder.resolve().name}-{number}",
            policy=info.get("robot_type"),
            outcome=success if isinstance(success := rewards.get("next.success"), bool) else None,
        )

    context.report.opened(folder.name)
    return context.rows(enumerate(groupby(frames, lambda frame: frame.get("episode_index")), start=1), build)


def _metadata(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Rows of ``meta/NAME``: a file of lines (version 2), or Parquet."""
    meta = folder / "meta"
    files = [meta / f"{name}.jsonl", meta / f"{name}.parquet", *sorted(meta.glob(f"{name}/**/*.parquet"))]
    return (dict(require_object(row, name)) for file in files if file.is_file() for _, row in raw_rows(file))


def _image(value: Any, folder: Path, context: ImportContext) -> dict[str, Any]:
    """An image that a frame holds, or names by its path; it is checked when it is used.

    Raises ``RecordError`` for a file that is missing or lies outside the folder.
    """
    content, path = require_object(value, "an image").get("bytes"), value.get("path")
    media_type = mimetypes.guess_type(path or "")[0] or "image/png"
    keep = context.keep or (lambda _content, _media_type: "")
    if content is None and not path:
        raise RecordError("an image of a frame has neither bytes nor a path")
    if content is None:
        image = Attachment(kind="image", uri=path, media_type=media_type)
        return stored(image, folder, keep).model_dump(exclude_none=True)
    uri, sha256 = keep(content, media_type), hashlib.sha256(content).hexdigest()
    return {"kind": "image", "uri": uri or None, "sha256": sha256, "media_type": media_type}


def _named(action: Any, feature: Mapping[str, Any]) -> dict[str, Any]:
    """An action by the names of its parts, if they have one each."""
    names: Any = feature.get("names")
    while isinstance(names, Mapping) or (isinstance(names, list) and isinstance(next(iter(names), 0), list)):
        names = next(iter(names.values() if isinstance(names, Mapping) else names), None)
    if isinstance(names, list) and isinstance(action, list) and len(names) == len(set(names)) == len(action):
        return dict(zip(map(str, names), action, strict=True))
    return {"action": action}
