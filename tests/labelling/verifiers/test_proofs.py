"""Formal proofs: small theorems, right proofs, and proofs whose first wrong step is known."""

from __future__ import annotations

import json
import shutil

import pytest

from surefoot.errors import LabelError, SandboxError
from surefoot.labelling import open_verifier
from surefoot.labelling.verifiers.proofs import LeanVerifier, RocqVerifier
from surefoot.protocols import ProblemTrace, StepVerifier
from surefoot.records import Problem, Trace
from surefoot.sandbox import Ending, ProgramResult, open_sandbox
from surefoot.segment import segment_trace, segmenter

ARITH = "Require Import Arith Lia."
LISTS = "Require Import List.\nImport ListNotations."
THEOREMS = {
    # name: preamble, statement, proof, other proofs and the number of their first wrong step
    "and_swap": (
        "",
        "forall P Q : Prop, P /\\ Q -> Q /\\ P",
        "Proof. intros P Q [p q]. split. - exact q. - exact p. Qed.",
        {"Proof. intros P Q [p q]. split. - exact p. - exact q. Qed.": 3},
    ),
    "or_swap": (
        "",
        "forall P Q : Prop, P \\/ Q -> Q \\/ P",
        "Proof. intros P Q [p|q]. { right. exact p. } { left. exact q. } Qed.",
        {"Proof. intros P Q [p|q]. { left. exact p. } { left. exact q. } Qed.": 3},
    ),
    "modus_ponens": (
        "",
        "forall P Q : Prop, (P -> Q) -> P -> Q",
        "intros P Q f p. apply f. exact p. Qed.",
        {"intros P Q f p. apply p. exact f. Qed.": 1},
    ),
    "not_not": (
        "",
        "forall P : Prop, P -> ~ ~ P",
        "Proof.\n  intros P p n.\n  apply n.\n  assumption.\nQed.\n",
        {"Proof.\n  intros P p n.\n  apply p.\n  assumption.\nQed.\n": 2},
    ),
    "add_comm": (
        ARITH,
        "forall n m : nat, n + m = m + n",
        "Proof. intros n m. apply Nat.add_comm. Qed.",
        {"Proof. intros n m. apply Nat.add_assoc. Qed.": 2, "Proof. intros n m. Qed.": 2},
    ),
    "add_zero": (
        "",
        "forall n : nat, n + 0 = n",
        "Proof. induction n as [|n IH]. - reflexivity. - simpl. rewrite IH. reflexivity. Qed.",
        {"Proof. induction n as [|n IH]. - reflexivity. - simpl. reflexivity. Qed.": 4},
    ),
    "double": (
        ARITH,
        "forall n : nat, n + n = 2 * n",
        "Proof. intros n. lia. Qed.",
        {"Proof. intros n. reflexivity. Qed.": 2},
    ),
    "less": (
        ARITH,
        "forall a b : nat, a < b -> a <= b",
        "Proof. intros. lia. Qed.",
        {"Proof. intros. rewrite H. lia. Qed.": 2},
    ),
    "app_nil": (
        LISTS,
        "forall (A : Type) (l : list A), l ++ [] = l",
        "Proof. intros A l. induction l as [|x l IH]. * reflexivity. * simpl. rewrite IH. reflexivity. Qed.",
        {"Proof. intros A l. induction l as [|x l IH]. * reflexivity. * rewrite IH. reflexivity. Qed.": 4},
    ),
    "length_app": (
        LISTS,
        "forall (A : Type) (l m : list A), length (l ++ m) = length l + length m",
        "Proof. intros. apply app_length. Qed.",
        {"Proof. intros. apply length_nil. Qed.": 2},
    ),
    "exists_even": (
        "",
        "exists n : nat, n + n = 10",
        "Proof. exists 5. reflexivity. Qed.",
        {"Proof. exists 4. reflexivity. Qed.": 2},
    ),
    "false_elim": (
        "",
        "forall P : Prop, False -> P",
        "Proof. intros P f. destruct f. Qed.",
        {"Proof. intros P f. exact f. Qed.": 2},
    ),
}


def problem(name: str, system: str = "rocq", **more: object) -> Problem:
    preamble, statement, _, _ = THEOREMS[name]
    whole = f"Theorem {name} : {statement}." if system == "rocq" else f"theorem {name} : {statement}"
    proof = {"system": system, "name": name, "statement": whole, "preamble": preamble, **more}
    return Problem(id=name, text=whole, meta={"proof": proof})


def item(one: Problem, text: str, cut: str = "rocq") -> ProblemTrace:
    return ProblemTrace(problem=one, trace=segment_trace(Trace(problem_id=one.id, text=text), segmenter(cut)))


@pytest.fixture(scope="module")
def rocq():
    if shutil.which("coqc") is None:
        pytest.skip("coqc is missing (Debian, Ubuntu: apt-get install coq)")
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield RocqVerifier(box)


def values(row):
    return [verdict.value for verdict in row]


def test_the_first_wrong_step_of_each_proof_is_named(rocq):
    cases = [(name, theorem[2], None) for name, theorem in THEOREMS.items()]
    cases += [(name, text, wrong) for name, theorem in THEOREMS.items() for text, wrong in theorem[3].items()]
    rows = rocq.verify([item(problem(name), text) for name, text, _ in cases])
    for (name, text, wrong), row in zip(cases, rows, strict=True):
        if wrong is None:
            assert set(values(row)) == {1}, (name, row)
        else:
            found = [verdict.value for verdict in row]
            assert found == [1] * wrong + [-1] + [None] * (len(row) - wrong - 1), (text, row)
            assert row[wrong].reason
    assert (
        "Unable to unify"
        in rows[cases.index(("exists_even", "Proof. exists 4. reflexivity. Qed.", 2))][2].reason
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Proof. intros n m. Admitted.", 2),
        ("Proof. intros n m. admit. Qed.", 2),
        ("Proof. intros n m. give_up. Qed.", 2),
        ("Proof. intros n m. (* admit. *) assert (n = n). { idtac; admit. } lia. Qed.", 3),
        ("Proof. intros n m. all: admit. exact I. Qed.", 2),
        ("Proof. Axiom cheat : False. intros. destruct cheat. Qed.", 1),
        ("Abort. Theorem add_comm : True. exact I. Qed.", 0),
        ("Proof. intros n m. Unset Guard Checking. lia. Qed.", 2),
        ("Proof. - Load other. lia. Qed.", 1),
        ('Proof. 1: Redirect "x" Print nat. lia. Qed.', 1),
        ("#[local] Parameter p : False. Qed.", 0),
        ("Proof. (* a. comment *) Require Import Classical. Qed.", 1),
        ("Proof fun n m => Nat.add_comm n m.", 0),
        ("Proof. intros n m. lia.", 2),
    ],
)
def test_what_proves_nothing_is_wrong(rocq, text, wrong):
    [row] = rocq.verify([item(problem("add_comm"), text)])
    assert values(row)[: wrong + 1] == [1] * wrong + [-1], row


def test_a_goal_that_was_not_given_up_is_proved(rocq):
    for tactic in ("first [ apply Nat.add_comm | admit ]", 'idtac "admit"; apply Nat.add_comm'):
        [row] = rocq.verify([item(problem("add_comm"), f"Proof. intros n admit. {tactic}. Qed.")])
        assert set(values(row)) == {1}, row


def test_axioms_are_named_unless_they_are_allowed(rocq):
    preamble = "Require Import Classical."
    text = "Proof. intros P. apply classic. Qed."
    meta = {"system": "rocq", "name": "em", "statement": "Theorem em : forall P : Prop, P \\/ ~ P."}
    for axioms, last in ((), -1), (("classic",), 1):
        one = Problem(id="em", text="em", meta={"proof": {**meta, "preamble": preamble, "axioms": axioms}})
        [row] = rocq.verify([item(one, text)])
        assert row[-1].value == last
        assert last == 1 or "axioms: classic" in row[-1].reason


def test_a_statement_that_is_refused_is_the_problems_fault(rocq):
    one = Problem(
        id="p", text="p", meta={"proof": {"system": "rocq", "name": "p", "statement": "Theorem p : nothing."}}
    )
    with pytest.raises(LabelError, match="Rocq rejects the statement of 'p'"):
        rocq.verify([item(one, "Qed.")])


def test_other_problems_are_unknown():
    verifier = open_verifier("rocq")
    assert isinstance(verifier, StepVerifier)

    class Nobody:
        def run(self, programs):
            assert not programs
            return []

    for one in (Problem(id="p", text="2 + 2?"), problem("double", "lean")):
        [row] = RocqVerifier(Nobody()).verify([item(one, "Proof. lia. Qed.")])
        assert values(row) == [None] * 3
    with pytest.raises(LabelError, match="p: meta"):
        RocqVerifier(Nobody()).verify([item(Problem(id="p", text="p", meta={"proof": 1}), "Qed.")])


class Lean:
    """A checker that says what was recorded of Lean 4; ``MARK`` in it becomes the mark of the run."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def run(self, programs):
        results = []
        for program in programs:
            text = program.files["proof.lean"].decode()
            mark = text.split('#eval "')[1].split('"')[0]
            said = "\n".join(self.lines).replace("MARK", mark)
            results.append(ProgramResult(ending=Ending.EXITED, exit_code=1, stdout=said.encode()))
        return results


def message(severity: str, line: int, column: int, data: str) -> str:

    pos = {"line": line, "column": column}
    return json.dumps(
        {"severity": severity, "pos": pos, "endPos": None, "fileName": "proof.lean", "data": data}
    )


MARKED = message("info", 9, 0, '"MARK"')
CLEAN = message("info", 10, 0, "'double' does not depend on any axioms")
PROOF = "  intro n\n  have h : n = n := by\n    rfl\n  omega\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([MARKED, CLEAN], [1, 1, 1]),
        ([message("error", 6, 2, "omega could not prove the goal"), MARKED, CLEAN], [1, 1, -1]),
        ([message("error", 5, 4, "The rfl tactic failed"), MARKED, CLEAN], [1, -1, None]),
        ([message("error", 2, 0, "unsolved goals\n⊢ True"), MARKED], [1, 1, -1]),
        ([MARKED, message("info", 10, 0, "'double' depends on axioms: [propext, Quot.sound]")], [1, 1, 1]),
        ([MARKED, message("info", 10, 0, "'double' depends on axioms: [Lean.ofReduceBool]")], [1, 1, -1]),
        ([message("info", 3, 0, "'double' does not depend on any axioms")], [1, 1, -1]),
        ([], [1, 1, -1]),
    ],
)
def test_what_lean_says_is_read(lines, expected):
    [row] = LeanVerifier(Lean(*lines)).verify([item(problem("double", "lean"), PROOF, "lean")])
    assert values(row) == expected


def test_lean_proofs_that_prove_nothing():
    proof = "  intro n\n  sorry\n"
    warned = message("warning", 2, 8, "declaration uses 'sorry'")
    [row] = LeanVerifier(Lean(warned, MARKED, CLEAN)).verify([item(problem("double", "lean"), proof, "lean")])
    assert values(row) == [1, -1]
    for text, wrong in (
        ("  intro n\naxiom cheat : False\n", 1),
        ("  intro n\n  run_tac IO.println 1\n  omega\n", 1),
        ("  #print axioms\n", 0),
    ):
        [row] = LeanVerifier(Lean()).verify([item(problem("double", "lean"), text, "lean")])
        assert values(row)[: wrong + 1] == [1] * wrong + [-1], text
