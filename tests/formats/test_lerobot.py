"""Episodes of robots in the form of LeRobot's data sets, versions 2.1 and 3.0."""

from __future__ import annotations

import hashlib
import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import good, refused
from PIL import Image

from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport, read_records
from surefoot.records import Problem, Trace

TASKS = ("Push the block onto the target.", "Lift the cube.")
CAMERAS = ("observation.images.top", "observation.images.wrist")


def picture(color, size=(12, 8), form="PNG", **options):
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, form, **options)
    return stream.getvalue()


def frames(episode, count, *, discrete=False, held=None):
    """Rows of one episode as LeRobot writes them."""
    rows = []
    for frame in range(count):
        last = frame == count - 1
        row = {
            "observation.state": [0.5 * frame, -1.0],
            "action": frame % 3 if discrete else [frame + 0.25, 0.5],
            "timestamp": frame / 10,
            "frame_index": frame,
            "episode_index": episode,
            "index": 100 * episode + frame,
            "task_index": episode % 2,
            "next.reward": float(last),
            "next.done": last,
            "next.success": last and episode == 0,
        }
        for camera in CAMERAS:
            content = picture((20 * frame, 10 * episode, len(camera)))
            row[camera] = {"bytes": content, "path": f"frame_{frame:06d}.png"}
        rows.append(row | (held or {}))
    return rows


def write_data(
    folder, episodes, *, version="v2.1", discrete=False, dtype="image", lengths=None, robot="so100"
):
    """A data set in the layout of a version."""
    scalar = {"shape": [1], "names": None}
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": {"motors": ["x", "y"]}},
        "action": {"dtype": "int64", **scalar}
        if discrete
        else {"dtype": "float32", "shape": [2], "names": {"motors": ["shoulder", "gripper"]}},
        **{
            name: {"dtype": dtype, "shape": [8, 12, 3], "names": ["height", "width", "channel"]}
            for name in CAMERAS
        },
        **{
            name: {"dtype": "int64", **scalar}
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
        **{name: {"dtype": "float32", **scalar} for name in ("timestamp", "next.reward")},
        **{name: {"dtype": "bool", **scalar} for name in ("next.done", "next.success")},
    }
    meta = folder / "meta"
    (folder / "data/chunk-000").mkdir(parents=True)
    meta.mkdir()
    info = {"codebase_version": version, "robot_type": robot, "fps": 10, "features": features}
    (meta / "info.json").write_text(json.dumps(info, indent=4))
    facts = [
        {
            "episode_index": number,
            "tasks": [TASKS[number % 2]],
            "length": (lengths or {}).get(number, len(rows)),
        }
        for number, rows in enumerate(episodes)
    ]
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    if version == "v3.0":
        (meta / "episodes/chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(facts), meta / "episodes/chunk-000/file-000.parquet")
        # pandas keeps the tasks in the table's index
        index = [{"task_index": row["task_index"], "__index_level_0__": row["task"]} for row in tasks]
        pq.write_table(pa.Table.from_pylist(index), meta / "tasks.parquet")
        rows = [row for episode in episodes for row in episode]
        pq.write_table(pa.Table.from_pylist(rows), folder / "data/chunk-000/file-000.parquet")
        return folder
    for name, rows in (("episodes", facts), ("tasks", tasks)):
        (meta / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number, rows in enumerate(episodes):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"data/chunk-000/episode_{number:06d}.parquet")
    return folder


def read(folder):
    """The traces, the stored images by their path, and the report."""
    kept = {}

    def keep(content, media_type):
        name = f"attachments/{hashlib.sha256(content).hexdigest()}.{media_type.rpartition('/')[2]}"
        kept[name] = content
        return name

    context = ImportContext(settings=ImportSettings(), report=ReadReport(), keep=keep, failed=[])
    return [item.trace for item in import_traces(folder, "lerobot", context)], kept, context.report


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_an_episode_is_a_run_of_calls_with_images_as_their_results(tmp_path, version):
    episodes = [frames(0, 3), frames(1, 2)]
    folder = write_data(tmp_path / "pusht", episodes, version=version)
    assert detect_format(folder) == "lerobot"
    (first, second), kept, report = read(folder)
    assert not report.bad_count
    assert (first.id, first.policy, first.outcome, second.outcome) == ("pusht-0", "so100", True, False)
    task, *rest = first.messages
    assert task.content.startswith(TASKS[0])
    assert len(rest) == 6
    for frame, (call, result) in enumerate(zip(rest[::2], rest[1::2], strict=True)):
        [action] = call.tool_calls
        assert (action.name, json.loads(action.arguments)) == (
            "act",
            {"shoulder": frame + 0.25, "gripper": 0.5},
        )
        seen = json.loads(result.content)
        assert seen["next.reward"] == float(frame == 2)
        assert seen.get("observation.state") == ([0.5 * (frame + 1), -1.0] if frame < 2 else None)
        assert result.tool_call_id == action.id
    shown = [message.attachments for message in first.messages if message.attachments]
    for frame, attachments in enumerate(shown):
        assert [kept[each.uri] for each in attachments] == [
            episodes[0][frame][camera]["bytes"] for camera in CAMERAS
        ]
        assert all(hashlib.sha256(kept[each.uri]).hexdigest() == each.sha256 for each in attachments)
    assert len(shown) == 3


def test_import_writes_typed_steps_and_the_frames_beside_them(tmp_path):
    folder = write_data(tmp_path / "maze", [frames(0, 3, discrete=True)], discrete=True, robot=None)
    good("import", folder, "--out", tmp_path / "out")
    [trace] = read_records(tmp_path / "out/traces.jsonl", Trace)
    [problem] = read_records(tmp_path / "out/problems.jsonl", Problem)
    assert (problem.text, problem.source) == (TASKS[0], "maze")
    assert [step.kind for step in trace.steps] == ["tool_call"] * 3
    assert [trace.step_text(step) for step in range(3)] == [
        f'act({{"action": {action}}})' for action in (0, 1, 2)
    ]
    for message in trace.messages:
        for image in message.attachments:
            content = (tmp_path / "out" / image.uri).read_bytes()
            assert hashlib.sha256(content).hexdigest() == image.sha256


def test_frames_in_files_are_read_from_the_folder(tmp_path):
    (tmp_path / "arm/images").mkdir(parents=True)
    (tmp_path / "arm/images/0.png").write_bytes(picture("red"))
    held = {camera: {"bytes": None, "path": "images/0.png"} for camera in CAMERAS}
    [trace], kept, _ = read(write_data(tmp_path / "arm", [frames(0, 2, held=held)]))
    assert [kept[image.uri] for image in trace.messages[0].attachments] == [picture("red")] * 2


def test_video_files_are_refused_with_what_to_do(tmp_path):
    folder = write_data(tmp_path / "arm", [frames(0, 2)], dtype="video")
    said = refused("import", folder, "--out", tmp_path / "out")
    assert "observation.images.top, observation.images.wrist are video files" in said
    assert "extract their frames" in said


def named(path):
    """An episode whose first camera names files."""
    return frames(0, 2, held={CAMERAS[0]: {"bytes": None, "path": path}})


BAD = {
    "missing": ([named("gone.png")], {}, "image gone.png"),
    "outside": ([named("../../a")], {}, "leaves the folder"),
    "no image": ([frames(0, 2, held={CAMERAS[0]: None})], {}, "an image is an object"),
    "no path": ([named(None)], {}, "neither bytes nor a path"),
    "fewer frames": ([frames(0, 2)], {0: 3}, "episode 0 has 2 frames, and its metadata say 3"),
    "no length": ([frames(0, 2)], {0: None}, "episode 0 has 2 frames, and its metadata say no length"),
    "NaN action": ([[*frames(0, 1), {**frames(0, 2)[1], "action": [math.nan, 0.5]}]], {},
                   "episode 0: frame 1: 'action' contains NaN or an infinity"),
    "infinite state": ([frames(0, 2, held={"observation.state": [0.5, -math.inf]})], {},
                       "episode 0: frame 0: 'observation.state' contains NaN or an infinity"),
    "NaN reward": ([frames(0, 2, held={"next.reward": math.nan})], {},
                   "episode 0: frame 0: 'next.reward' contains NaN or an infinity"),
    "a gap": ([frames(0, 3)[::2]], {}, "frame 1 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_episode_is_rejected_with_its_reason_and_the_others_are_read(tmp_path, name):
    episodes, lengths, why = BAD[name]
    good_one = frames(1, 2)
    traces, _, report = read(write_data(tmp_path / "arm", [*episodes, good_one], lengths=lengths))
    assert [trace.id for trace in traces] == ["arm-1"]
    assert why in report.bad[0][1]


@pytest.mark.parametrize("length", [1, 2, None])
def test_an_episode_in_two_places_is_never_read_as_whole_twice(tmp_path, length):
    folder = write_data(
        tmp_path / "arm", [[frames(0, 1)[0], frames(1, 1)[0], frames(0, 2)[1]]], version="v3.0"
    )
    facts = [{"episode_index": 0, "length": length}, {"episode_index": 1, "length": 1}]
    pq.write_table(pa.Table.from_pylist(facts), folder / "meta/episodes/chunk-000/file-000.parquet")
    traces, _, report = read(folder)
    assert [trace.id for trace in traces] == (["arm-0", "arm-1"] if length == 1 else ["arm-1"])
    assert "episode 0 begins a second time" in report.bad[-1][1]
    if length != 1:
        assert "episode 0 has 1 frames, and its metadata say" in report.bad[0][1]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"features": {"action": 1}}', '{"features": {"x": {"dtype": "int64"}}}']
)
def test_damaged_metadata_are_an_error_that_names_them(tmp_path, content):
    folder = write_data(tmp_path / "arm", [frames(0, 2)])
    (folder / "meta/info.json").write_text(content)
    said = refused("import", folder, "--out", tmp_path / "out")
    assert "Traceback" not in said


def test_a_remote_frame_is_named_and_never_fetched(tmp_path):
    held = {camera: {"bytes": None, "path": "https://example.org/a.png"} for camera in CAMERAS}
    [trace], kept, _ = read(write_data(tmp_path / "arm", [frames(0, 2, held=held)]))
    assert {image.uri for image in trace.messages[0].attachments} == {"https://example.org/a.png"}
    assert not kept


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["shoulder", "gripper"], {"shoulder": 0.25, "gripper": 0.5}),
        ([["shoulder", "gripper"]], {"shoulder": 0.25, "gripper": 0.5}),
        ({"motors": ["shoulder", "gripper"]}, {"shoulder": 0.25, "gripper": 0.5}),
        (["shoulder"], {"action": [0.25, 0.5]}),
        (["same", "same"], {"action": [0.25, 0.5]}),
        (None, {"action": [0.25, 0.5]}),
    ],
)
def test_actions_have_the_names_of_their_parts(tmp_path, names, expected):
    folder = write_data(tmp_path / "arm", [frames(0, 1)])
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["action"]["names"] = names
    (folder / "meta/info.json").write_text(json.dumps(info))
    [trace], _, _ = read(folder)
    assert json.loads(trace.messages[1].tool_calls[0].arguments) == expected


def test_frames_without_an_episode_are_refused(tmp_path):
    folder = write_data(tmp_path / "arm", [frames(0, 2)])
    for file in folder.glob("data/**/*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["episode_index"]), file)
    _, _, report = read(folder)
    assert "episode_index" in report.bad[0][1]
