"""Tactics of formal proofs, checked by the proof assistant itself: ``rocq`` and ``lean``.

The checker runs in a sandbox (:mod:`surefoot.sandbox`), on the statement of ``Problem.meta["proof"]`` and the
proof of the trace. A trace can only give tactics: commands, which could change what is proved, are refused
before anything runs. At the end the axioms are asked for.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.errors import LabelError, SandboxError
from surefoot.labelling.verifiers.programs import SandboxedVerifier, first_error, unknown
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem, ProofTask, Trace
from surefoot.sandbox import Ending, Limits, Program, ProgramResult

_NO_PROOF = "the problem asks for no proof of this system in meta['proof']"
_ACCEPTED = "accepted by the checker"
_NOT_FINISHED = "the proof ends here, and is not finished"
_ROCQ_ERROR = re.compile(
    r'^File "[^"]*", line (\d+), characters (\d+)-\d+:\nError:?(.*)', re.MULTILINE | re.DOTALL
)
_FINDLIB = b'path="/usr/lib/ocaml:/usr/local/lib/ocaml"\ndestdir="/usr/lib/ocaml"\n'
"""Where Rocq finds its own plugins: a sandbox has no /etc, in which Debian says it."""
_REASON = 600
"""Characters of a checker's message."""


class _NoVerdictError(Exception):
    """The checker itself failed: nothing is known of the proof."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first thing that is wrong with a proof."""

    at: int | None
    """Place in the trace's text, in characters; ``None`` = behind its end."""
    reason: str


class ProofVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: does the proof assistant accept each step?

    The first step that it does not accept is -1, with its message; those before it are +1, those after it
    unknown. A proof that is not finished has its last step at -1. +1 does not say that the goals which are
    left can be proved. Unknown, too, is a proof on which the checker ran out of time or memory.
    """

    name: str
    default_limits = Limits(
        wall_s=60, cpu_s=60, memory_bytes=4 << 30, processes=64, open_files=1024, output_bytes=8 << 20
    )

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError`` where the checker is missing."""
        tasks = [_task(item.problem, self.name) for item in items]
        rows = [unknown(len(item.trace.steps), _NO_PROOF) for item in items]
        running: list[tuple[int, ProofTask, str]] = []
        programs: list[Program] = []
        for at, (item, task) in enumerate(zip(items, tasks, strict=True)):
            if task is None or item.trace.text is None or not item.trace.steps:
                continue
            if (command := self.command(item.trace.text)) is not None:
                rows[at] = _verdicts(item.trace, command)
                continue
            mark = secrets.token_hex(8)  # which the proof cannot know
            running.append((at, task, mark))
            programs.append(self.program(task, item.trace.text, mark))
        for (at, task, mark), result in zip(running, self.sandbox.run(programs), strict=True):
            rows[at] = self._judged(items[at].trace, task, result, mark)
        return rows

    def _judged(self, trace: Trace, task: ProofTask, result: ProgramResult, mark: str) -> list[Verdict]:
        count = len(trace.steps)
        if result.ending is Ending.REFUSED:
            raise SandboxError(
                f"{self.name}: {result.reason or 'the checker cannot be started'}; {self.install}"
            )
        if result.ending is not Ending.EXITED:
            return unknown(count, f"the checker ended without a verdict: {result.reason or result.ending}")
        try:
            fault = self.fault(task, trace.text or "", result, mark)
        except _NoVerdictError as error:
            return unknown(count, str(error))
        return (
            [Verdict(value=1, reason="the proof is complete")] * count
            if fault is None
            else _verdicts(trace, fault)
        )

    install: str
    """What to install where the checker is missing."""

    @abstractmethod
    def command(self, proof: str) -> Fault | None:
        """The first part of a proof that is no tactic."""

    @abstractmethod
    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """The checker on the whole; it says ``mark`` before it names the axioms."""

    @abstractmethod
    def fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """What the checker found; ``None``: the proof is complete."""


class RocqVerifier(ProofVerifier):
    """Proofs of Rocq (formerly Coq) by ``coqc``; steps are sentences (segmenter ``rocq``).

    A proof may begin with ``Proof`` and has to end with ``Qed`` or ``Defined``; all else are tactics.
    """

    name = "rocq"
    install = "install it where the sandbox sees it (Debian, Ubuntu: apt-get install coq)"

    def command(self, proof: str) -> Fault | None:
        """Commands of Rocq begin with a capital letter or an attribute, tactics never do."""
        from surefoot.segment.proofs import RocqSentences

        for start, end in RocqSentences().segment(proof):
            sentence = _without_comments(proof[start:end])
            word = re.match(r"[\s{}+*-]*(?:(?:\d+|all|par|!|\[[^\]]*\])\s*:\s*)?[{}\s]*(#|\w+)", sentence)
            if word is None or not (word[1] == "#" or word[1][0].isupper()):
                continue
            if word[1] not in ("Proof", "Qed", "Defined") or re.match(
                r"\s*Proof\s+(?!with\b|using\b)\w", sentence
            ):
                reason = f"{word[1]!r} is a command, and a proof may have tactics alone"
                return Fault(at=start, reason=reason)
        return None

    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """``coqc`` on one file."""
        end = f'Goal True. idtac "{mark}". exact I. Qed.\nPrint Assumptions {task.name}.\n'
        text = f"{_opening(task)}{proof}\n{end}"
        return Program(
            argv=(
                "/usr/bin/env",
                "OCAMLFIND_CONF=findlib",
                "coqc",
                "-q",
                "-noglob",
                "-color",
                "no",
                "proof.v",
            ),
            files={"proof.v": text.encode("utf-8", "surrogatepass"), "findlib": _FINDLIB},
            limits=self.limits,
        )

    def fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """From the first error, which ends ``coqc``, or the axioms."""
        said = result.stderr.decode(errors="replace")
        error = re.search(
            r'^File "[^"]*", line (\d+), characters (\d+)-\d+:\n(?:Error:?)(.*)', said, re.M | re.S
        )
        opening = _opening(task)
        if error:
            lines = f"{opening}{proof}\n".encode("utf-8", "surrogatepass").splitlines(keepends=True)
            at = sum(map(len, lines[: int(error[1]) - 1])) + int(error[2])
            place = len(b"".join(lines)[:at].decode("utf-8", "replace")) - len(opening)
            if place < 0:
                raise LabelError(f"the statement of {task.name!r} is refused by Rocq: {_short(error[3])}")
            if place > len(proof):
                return Fault(at=None, reason=_NOT_FINISHED)
            return Fault(at=place, reason=_short(error[3]))
        if result.exit_code == 127:
            raise SandboxError(f"rocq: {_short(said)}; {self.install}")
        if result.exit_code != 0:
            raise _NoVerdictError(f"coqc failed: {_short(said) or result.exit_code}")
        _, marked, axioms = result.stdout.decode(errors="replace").rpartition(mark)
        if not marked:
            return Fault(at=None, reason="the checker did not come to its end")
        if "Closed under the global context" in axioms:
            return None
        names = re.findall(r"^([\w.']+)\s*:", axioms.partition("Axioms:")[2], re.MULTILINE)
        strange = [one for one in names if one not in task.axioms]
        if names and not strange:
            return None
        return Fault(at=None, reason=f"the proof rests on axioms: {', '.join(strange) or _short(axioms)}")


class LeanVerifier(ProofVerifier):
    """Proofs of Lean 4 by ``lean --json``; steps are tactics (segmenter ``lean``).

    The proof follows ``:= by`` on lines of its own, indented.
    """

    name = "lean"
    install = "install Lean 4 so that the sandbox finds 'lean' in /usr/bin"
    core = ("propext", "Classical.choice", "Quot.sound")
    """Axioms of Lean's core library."""
    _meta = re.compile(r"\b(?:run_tac|by_elab|run_elab|run_meta|eval%|unsafe)\b|#\w+")

    def command(self, proof: str) -> Fault | None:
        """Commands begin at the margin; a few tactics run programs of their own."""
        for line in re.finditer(r"^(?=\S).*", proof, re.M):
            if not line[0].startswith("--"):
                return Fault(at=line.start(), reason="a line at the margin is a command; indent tactics")
        if found := self._meta.search(proof):
            return Fault(at=found.start(), reason=f"{found[0]!r} runs programs or commands inside a proof")
        return None

    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """``lean --json`` on one file."""
        text = f'{_opening(task)}{proof}\n\n#eval "{mark}"\n#print axioms {task.name}\n'
        return Program(
            argv=("lean", "--json", "proof.lean"),
            files={"proof.lean": text.encode("utf-8", "surrogatepass")},
            limits=self.limits,
        )

    def fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """From the first error or ``sorry`` in the order of the text, or the axioms."""
        opening, messages = _opening(task), _lean_messages(result.stdout)
        text = f"{opening}{proof}\n"
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        faults: list[Fault] = []
        for severity, line, column, said in messages:
            if severity != "error" and "declaration uses 'sorry'" not in said:
                continue
            place = starts[min(line, len(starts)) - 1] + column - len(opening)
            if place < 0 and severity == "error" and not said.startswith("unsolved goals"):
                raise LabelError(f"the statement of {task.name!r} is refused by Lean: {_short(said)}")
            if severity != "error":
                found = re.search(r"\bsorry\b", proof)
                place, said = (found.start() if found else 0), "'sorry' proves nothing"
            if place < 0:
                faults.append(Fault(at=None, reason=_NOT_FINISHED))
            elif place <= len(proof):
                faults.append(Fault(at=place, reason=_short(said)))
        if faults:
            return min(faults, key=lambda one: len(proof) if one.at is None else one.at)
        after = iter([said for _, _, _, said in messages])
        axioms = next((next(after, "") for said in after if mark in said), "")
        if "does not depend on any axioms" in axioms:
            return None
        listed = re.search(r"depends on axioms: \[(.*?)\]", axioms, re.S)
        if listed is None:
            return Fault(at=None, reason="the checker did not come to its end")
        allowed = {*self.core, *task.axioms}
        strange = [name for name in re.split(r"[,\s]+", listed[1]) if name and name not in allowed]
        return Fault(at=None, reason=f"the proof rests on axioms: {', '.join(strange)}") if strange else None


def _lean_messages(output: bytes) -> list[tuple[str, int, int, str]]:
    """Severity, line from 1, column in characters, and text of each message of ``lean --json``."""
    found = []
    for line in output.decode(errors="replace").splitlines():
        try:
            said = json.loads(line)
            place = said["pos"]
            found.append((str(said["severity"]), int(place["line"]), int(place["column"]), str(said["data"])))
        except (ValueError, TypeError, KeyError):
            continue  # what the checker writes beside its messages
    return found


def _opening(task: ProofTask) -> str:
    preamble = f"{task.preamble.rstrip()}\n" if task.preamble.strip() else ""
    return f"{preamble}{task.statement.strip()}{' := by' if task.system == 'lean' else ''}\n"


def _verdicts(trace: Trace, fault: Fault) -> list[Verdict]:
    starts = [step.start for step in trace.steps]
    last = len(starts) - 1
    wrong = last if fault.at is None else min(max(bisect_right(starts, fault.at) - 1, 0), last)
    return first_error(len(starts), wrong, fault.reason, _ACCEPTED)


def _without_comments(sentence: str) -> str:
    """A sentence of Rocq without its (nested) comments."""
    kept, depth, at = [], 0, 0
    for match in re.finditer(r"\(\*|\*\)", sentence):
        kept += [sentence[at : match.start()]] if not depth else []
        depth = depth + 1 if match[0] == "(*" else max(depth - 1, 0)
        at = match.end()
    return "".join([*kept, sentence[at:] if not depth else ""])


def _short(said: str) -> str:
    return " ".join(said.split())[:_REASON]


def _task(problem: Problem, system: str) -> ProofTask | None:
    try:
        task = ProofTask.of(problem)
    except ValueError as error:
        raise LabelError(f"problem {problem.id}: meta['proof'] is no task of a proof: {error}") from error
    return task if task is not None and task.system == system else None
