"""``surefoot rl`` on a tiny random policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import good, refused
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.worlds.digits import build_tokenizer
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from benchmarks.worlds.lock import LOCK_TEMPLATE, lock_problems
from surefoot.cli.parser import SettingsCommand
from surefoot.cli.rl import RL
from surefoot.errors import RunError
from surefoot.io import write_records
from surefoot.models.lora import Lora
from surefoot.rl.advantage import Group, LeaveOneOut
from surefoot.rl.config import KL, PRESETS, RLConfig
from surefoot.rl.credit import ClipDelta, Effective, MinForm, Mixed, Outcome

VERIFIER = "benchmarks.worlds.digits:DigitVerifier"
SMALL = [
    "--updates",
    "2",
    "--round-problems",
    "2",
    "--samples",
    "2",
    "--max-tokens",
    "8",
    "--evaluate-every",
    "1",
]


def settled(*words: str, file: Path | None = None) -> RLConfig:
    """The settings that a command line comes to."""
    seen: list[RL] = []

    class Seen(RL):
        def run(self) -> None:
            seen.append(self)

    app = SettingsCommand("rl", Seen)
    config = ["--config", str(file)] if file else []
    CliRunner().invoke(app, ["lab", "--policy=lab", "--out", "run", *config, *words], catch_exceptions=False)
    return seen[0].rl


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    write_records(
        path, generate_problems(30, seed=3, difficulty=Difficulty(min_operations=1, max_operations=3))
    )
    return path


@pytest.mark.slow
def test_a_run_leaves_policy_curves_samples_and_report(
    lab_base: Path, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    line = ["rl", str(problems), "--policy", str(lab_base), "--credit", "min-form"]
    line += ["--set", "rl.batch_size=2"]
    line += ["--verifier", VERIFIER, "--gold", VERIFIER, "--equality", "exact", "--out", str(out), *SMALL]
    assert "answers more problems after training" in good(*line).err
    assert (out / "policy" / "model.safetensors").exists()
    assert f"{VERIFIER} reads text; hidden reasoning: not graded" in (out / "report.html").read_text()
    assert json.loads((out / "done" / "rl.json").read_text())["data"]["channels"]["reads"] == {
        VERIFIER: ["text"]
    }
    assert len((out / "curves.jsonl").read_text().splitlines()) == 5
    assert len(list((out / "samples").iterdir())) == 2
    config = json.loads((out / "rl.json").read_text())["config"]
    assert (config["credit"]["rule"], config["batch_size"]) == ("min-form", 2)
    assert "finished already" in good(*line).err
    assert "another run" in refused(*line, "--seed", "1")
    assert "finished already" in good(*line, "--set", "microbatch_tokens=64", "--set", "rl.batch_size=3").err
    assert "finished with 2 updates: train on from --policy" in refused(*line, "--updates", "3")


@pytest.mark.slow
def test_problems_of_the_lab_are_made(tmp_path: Path) -> None:
    line = [
        "rl",
        "lab",
        "--policy",
        "lab",
        "--out",
        str(tmp_path / "run"),
        *SMALL,
        "--set",
        "evaluate_every=9",
    ]
    line += ["--equality", "exact"]
    good(*line)
    assert (tmp_path / "run" / "policy").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--credit", "best"], "--credit is 'best'; choose outcome"),
        (["--credit", "summed"], "'summed' needs step scores"),
        (["--prm", "x", "--verifier", "lab"], "give one of them"),
        (["--base-url", "http://localhost:1/v1"], "--base-url and --server-model go together"),
        (["--set", "updates"], "write NAME=VALUE"),
        (["--set", "objective.clip=0.3"], "unknown setting 'clip'; did you mean 'clip_low'?"),
        (["--set", "seed.x=1"], "--seed: Input should be"),
        (["--credit", "min-form:temprature=1"], "unknown setting of min-form 'temprature'; did you mean"),
        (["--credit", "min-form:temperature"], "write 'temperature' as SETTING=VALUE"),
        (["--credit", "pav:alpha=-1"], "alpha: Input should be greater than or equal to 0"),
        (["--advantage", "gae:lambda=1"], "unknown setting of gae 'lambda'; did you mean 'lam'"),
        (["--set", "aggregate=best"], "aggregate is 'best'"),
        (["--validation", "0"], "leaves one side empty"),
        (["--config", "none.toml"], "none.toml"),
        (["--samples", "1"], "--samples must be 2 or more"),
        (["--system", "be brief"], "--system needs --chat"),
        (["--round-problems", "99"], "is 99 per round, but there are"),
    ],
)
def test_what_does_not_fit_is_named(
    lab_base: Path, problems: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    line = ["rl", str(problems), "--policy", str(lab_base), "--out", str(tmp_path / "run")]
    assert message in refused(*line, *SMALL, *options)


def test_flags_win_over_assignments_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    path.write_text('updates = 7\nsamples = 5\n[credit]\nrule = "clip-delta"\n[objective]\nclip_high = 0.3\n')
    found = settled("--samples", "6", "--set", "objective.clip_low=0.1", file=path)
    assert (found.updates, found.samples, found.seed) == (7, 6, 0)
    assert found.credit == ClipDelta()
    assert (found.objective.clip_low, found.objective.clip_high) == (0.1, 0.3)
    assert settled("--set", "samples=9", file=path).samples == 9
    assert settled("--set", "samples=9", "--samples", "6", file=path).samples == 6
    (tmp_path / "rl.json").write_text(json.dumps({"updates": 3}))
    assert settled(file=tmp_path / "rl.json").updates == 3


def test_flags_change_what_they_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    path.write_text("[objective.kl]\ncoefficient = 1.0\n[lora]\nrank = 2\nalpha = 7.0\n")
    found = settled("--kl", "0.1", "--lora", "4", file=path)
    assert found.objective.kl == KL(coefficient=0.1)
    assert found.lora == Lora(rank=4, alpha=7.0)
    path.write_text("objective = 3\n")
    with pytest.raises(RunError, match="'objective' is not a table"):
        settled("--kl", "0.1", file=path)


def test_methods_by_name() -> None:
    assert settled().credit == Outcome()
    assert settled().advantage == LeaveOneOut()
    grpo = settled("--credit", "process-grpo")
    assert (grpo.credit, grpo.advantage) == (PRESETS["process-grpo"]["credit"], Group())
    assert settled("--credit", "process-grpo", "--advantage", "leave-one-out").advantage == LeaveOneOut()
    assert settled("--credit", "prime").accuracy_band == (0.2, 0.8)
    mixed = settled("--credit", "min-form:outcome=2.0,temperature=0.2")
    assert mixed.credit == Mixed(of=MinForm(temperature=0.2), outcome=2.0)
    assert settled("--credit", "pure:process=0.5").credit == Mixed(of=MinForm(), process=0.5)
    by_parts = settled("--credit", "mixed:of.rule=min-form,of.temperature=0.2,outcome=2")
    assert by_parts.credit == mixed.credit
    pav = settled("--credit", "pav:alpha=5,best-of=4", "--advantage", "leave-one-out:whiten=yes")
    assert (pav.credit, pav.advantage) == (Effective(alpha=5, best_of=4), LeaveOneOut(whiten=True))
    assert RLConfig(credit="min-form:signed=false").credit == MinForm(signed=False)
    assert settled("--kl", "0.1").objective.kl is not None
    assert settled("--kl", "0.0").objective.kl is None
    assert settled("--credit", "min-form", "--set", "credit.temperature=0.2").credit == MinForm(
        temperature=0.2
    )


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rl.json"
    path.write_text("[1]")
    with pytest.raises(RunError, match="contains no table"):
        settled(file=path)


@pytest.fixture
def menu_policy(tmp_path: Path) -> Path:
    """A random policy whose tokenizer has a chat template."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = LOCK_TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    path = tmp_path / "menu"
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_episodes_in_an_environment(tmp_path: Path, menu_policy: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    write_records(tasks, lock_problems(20))
    base = ["rl", f"{tasks}", f"--policy={menu_policy}", "--credit=anchor-state", *SMALL]
    turns = ["--environment=benchmarks.worlds.lock:Lock", "--max-turns=3", "--max-tokens=1"]
    good(*base, *turns, f"--out={tmp_path / 'rl'}")
    log = json.loads((tmp_path / "rl" / "rl.json").read_text())
    assert len(log["log"]["updates"]) == 2
    sample = next((tmp_path / "rl" / "samples").glob("*.jsonl")).read_text().splitlines()[0]
    turns_of_one = sum(one["role"] == "assistant" for one in json.loads(sample)["trace"]["messages"])
    assert 1 <= turns_of_one <= 3
    out = f"--out={tmp_path / 'no'}"
    assert "takes calls of its tools" in refused(*base, "--environment=drawers:Drawers", out)
    assert "needs its own PROBLEMS" in refused(
        "rl", "lab", "--policy=lab", "--environment=benchmarks.worlds.lock:Lock", out
    )
    assert "compares turns in equal states" in refused(*base, out)
