"""Tactics of formal proofs, checked by the proof assistant: ``rocq`` and ``lean``.

The checker runs in a sandbox (:mod:`surefoot.sandbox`) on the statement of ``Problem.meta["proof"]`` and the
proof in the trace. A trace may only contain tactics: commands could change the statement, so they are
refused before anything runs. At the end the checker lists the axioms.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot.errors import LabelError, SandboxError
from surefoot.labelling.verifiers.programs import SandboxedVerifier, first_error, unknown
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem, ProofTask, Trace
from surefoot.sandbox import Ending, Limits, Program, ProgramResult

_NO_PROOF = "meta['proof'] of the problem lacks a proof task of this system"
_NOT_FINISHED = "the proof ends here, and is not finished"
_NO_END = "the checker did not reach the end of the file"
_ROCQ_ERROR = re.compile(
    r'^File "[^"]*", line (\d+), characters (\d+)-\d+:\n(?:Error:?)(.*)', re.MULTILINE | re.DOTALL
)
_GIVES_UP = re.compile(r"(?<![\w'\".])(?:admit|give_up)(?![\w'\"])")
_FINDLIB = b'path="/usr/lib/ocaml:/usr/local/lib/ocaml"\ndestdir="/usr/lib/ocaml"\n'
"""Tells Rocq where its plugins are: Debian configures it in /etc, which a sandbox does not have."""


class _NoVerdictError(Exception):
    """The checker itself failed: nothing is known about the proof."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first error in a proof."""

    at: int | None
    """Position in the trace's text, in characters; ``None`` = after its end."""
    reason: str


class ProofVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: does the proof assistant accept each step?

    The first step that it rejects is -1, with its message; the steps before it are +1, those after it
    unknown. The last step of an unfinished proof is -1. +1 does not mean that the remaining goals can be
    proved. A proof on which the checker ran out of time or memory is unknown.
    """

    name: str
    install: str
    """How to install a missing checker."""
    default_limits = Limits(
        wall_s=60, cpu_s=60, memory_bytes=4 << 30, processes=64, open_files=1024, output_bytes=8 << 20
    )

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError`` if the checker is missing."""
        rows = [unknown(len(item.trace.steps), _NO_PROOF) for item in items]
        jobs: list[tuple[int, ProofTask, str]] = []
        programs: list[Program] = []
        for number, item in enumerate(items):
            task, proof = _task(item.problem, self.name), item.trace.text
            if task is None or proof is None or not item.trace.steps:
                continue
            if (command := self.find_command(proof)) is not None:
                rows[number] = _verdicts(item.trace, command)
                continue
            mark = secrets.token_hex(8)  # the proof cannot know it
            jobs.append((number, task, mark))
            programs.append(self.program(task, proof, mark))
        for (number, task, mark), result in zip(jobs, self.sandbox.run(programs), strict=True):
            rows[number] = self._result(items[number].trace, task, result, mark)
        return rows

    def _result(self, trace: Trace, task: ProofTask, result: ProgramResult, mark: str) -> list[Verdict]:
        count = len(trace.steps)
        if result.ending is Ending.REFUSED:
            reason = result.reason or "the checker cannot be started"
            raise SandboxError(f"{self.name}: {reason}; {self.install}")
        if result.ending is not Ending.EXITED:
            return unknown(count, f"the checker ended without a verdict: {result.reason or result.ending}")
        try:
            fault = self.find_fault(task, trace.text or "", result, mark)
        except _NoVerdictError as error:
            return unknown(count, str(error))
        if fault is None:
            return [Verdict(value=1, reason="the proof is complete")] * count
        return _verdicts(trace, fault)

    @abstractmethod
    def find_command(self, proof: str) -> Fault | None:
        """The first part of a proof that is not a tactic."""

    @abstractmethod
    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """The checker on statement and proof; it prints ``mark`` before the list of axioms."""

    @abstractmethod
    def find_fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """The first error in the checker's output; ``None``: the proof is complete."""


class RocqVerifier(ProofVerifier):
    """Proofs of Rocq (formerly Coq) by ``coqc``; steps are sentences (segmenter ``rocq``).

    A proof may begin with ``Proof`` and must end with ``Qed`` or ``Defined``; everything else must be
    tactics.
    """

    name = "rocq"
    install = "install it where the sandbox sees it (Debian, Ubuntu: apt-get install coq)"

    def find_command(self, proof: str) -> Fault | None:
        """Commands of Rocq begin with a capital letter or an attribute, tactics never do."""
        for start, sentence in _rocq_sentences(proof):
            word = re.match(r"[\s{}+*-]*(?:(?:\d+|all|par|!|\[[^\]]*\])\s*:\s*)?[{}\s]*(#|\w+)", sentence)
            if word is None or not (word[1] == "#" or word[1][0].isupper()):
                continue
            proof_term = re.match(r"\s*Proof\s+(?!with\b|using\b)\w", sentence)
            if word[1] not in ("Proof", "Qed", "Defined") or proof_term:
                return Fault(at=start, reason=f"{word[1]!r} is a command, and a proof may have tactics alone")
        return None

    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """``coqc`` on one file."""
        end = f'Goal True. idtac "{mark}". exact I. Qed.\nPrint Assumptions {task.name}.\n'
        text = f"{_opening(task)}{proof}\n{end}"
        command = "/usr/bin/env OCAMLFIND_CONF=findlib coqc -q -noglob -color no proof.v"
        return Program(
            argv=tuple(command.split()),
            files={"proof.v": text.encode("utf-8", "surrogatepass"), "findlib": _FINDLIB},
            limits=self.limits,
        )

    def find_fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """The first error, at which ``coqc`` stops, a forbidden axiom, or a goal given up before it."""
        fault = self._first_error(task, proof, result, mark)
        if fault is None:
            return None
        # coqc accepts these tactics and refuses the end of the proof
        for start, sentence in _rocq_sentences(proof[: fault.at]):
            if tactic := _GIVES_UP.search(sentence):
                return Fault(at=start, reason=f"{tactic[0]!r} gives the goal up and proves nothing")
        return fault

    def _first_error(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        output = result.stderr.decode(errors="replace")
        opening = _opening(task)
        if error := _ROCQ_ERROR.search(output):
            lines = f"{opening}{proof}\n".encode("utf-8", "surrogatepass").splitlines(keepends=True)
            bytes_before = sum(map(len, lines[: int(error[1]) - 1])) + int(error[2])
            at = len(b"".join(lines)[:bytes_before].decode("utf-8", "replace")) - len(opening)
            if at < 0:
                raise LabelError(f"Rocq rejects the statement of {task.name!r}: {_shorten(error[3])}")
            if at > len(proof):
                return Fault(at=None, reason=_NOT_FINISHED)
            return Fault(at=at, reason=_shorten(error[3]))
        if result.exit_code == 127:
            raise SandboxError(f"rocq: {_shorten(output)}; {self.install}")
        if result.exit_code != 0:
            raise _NoVerdictError(f"coqc failed: {_shorten(output) or result.exit_code}")
        _, marked, axioms = result.stdout.decode(errors="replace").rpartition(mark)
        if not marked:
            return Fault(at=None, reason=_NO_END)
        if "Closed under the global context" in axioms:
            return None
        names = re.findall(r"^([\w.']+)\s*:", axioms.partition("Axioms:")[2], re.MULTILINE)
        forbidden = [name for name in names if name not in task.axioms]
        if names and not forbidden:
            return None
        return Fault(at=None, reason=f"the proof uses axioms: {', '.join(forbidden) or _shorten(axioms)}")


class LeanVerifier(ProofVerifier):
    """Proofs of Lean 4 by ``lean --json``; steps are tactics (segmenter ``lean``).

    The proof follows ``:= by`` on separate, indented lines.
    """

    name = "lean"
    install = "install Lean 4 so that the sandbox finds 'lean' in /usr/bin"
    core = ("propext", "Classical.choice", "Quot.sound")
    """Axioms of Lean's core library."""
    _meta = re.compile(r"\b(?:run_tac|by_elab|run_elab|run_meta|eval%|unsafe)\b|#\w+")

    def find_command(self, proof: str) -> Fault | None:
        """Commands begin at the margin; a few tactics run programs."""
        for line in re.finditer(r"^(?=\S).*", proof, re.M):
            if not line[0].startswith("--"):
                return Fault(at=line.start(), reason="a line at the margin is a command; indent tactics")
        if meta := self._meta.search(proof):
            return Fault(at=meta.start(), reason=f"{meta[0]!r} runs programs or commands inside a proof")
        return None

    def program(self, task: ProofTask, proof: str, mark: str) -> Program:
        """``lean --json`` on one file."""
        text = f'{_opening(task)}{proof}\n\n#eval "{mark}"\n#print axioms {task.name}\n'
        return Program(
            argv=("lean", "--json", "proof.lean"),
            files={"proof.lean": text.encode("utf-8", "surrogatepass")},
            limits=self.limits,
        )

    def find_fault(self, task: ProofTask, proof: str, result: ProgramResult, mark: str) -> Fault | None:
        """The first error or ``sorry`` in the order of the text, or a forbidden axiom."""
        opening, messages = _opening(task), _lean_messages(result.stdout)
        line_starts = [0, *(match.end() for match in re.finditer("\n", f"{opening}{proof}\n"))]
        faults: list[Fault] = []
        for message in messages:
            at = line_starts[min(message.line, len(line_starts)) - 1] + message.column - len(opening)
            reason = _shorten(message.text)
            if message.severity == "error":
                if at < 0 and not message.text.startswith("unsolved goals"):
                    raise LabelError(f"Lean rejects the statement of {task.name!r}: {reason}")
            elif "declaration uses 'sorry'" in message.text:
                sorry = re.search(r"\bsorry\b", proof)
                at, reason = sorry.start() if sorry else 0, "'sorry' proves nothing"
            else:
                continue
            if at < 0:
                faults.append(Fault(at=None, reason=_NOT_FINISHED))
            elif at <= len(proof):
                faults.append(Fault(at=at, reason=reason))
        if faults:
            return min(faults, key=lambda fault: len(proof) if fault.at is None else fault.at)
        texts = iter([message.text for message in messages])
        axioms = next((next(texts, "") for text in texts if mark in text), "")
        if "does not depend on any axioms" in axioms:
            return None
        names = re.search(r"depends on axioms: \[(.*?)\]", axioms, re.S)
        if names is None:
            return Fault(at=None, reason=_NO_END)
        allowed = {*self.core, *task.axioms}
        forbidden = [name for name in re.split(r"[,\s]+", names[1]) if name and name not in allowed]
        return Fault(at=None, reason=f"the proof uses axioms: {', '.join(forbidden)}") if forbidden else None


class _LeanMessage(NamedTuple):
    severity: str
    line: int
    """From 1."""
    column: int
    text: str


def _lean_messages(output: bytes) -> list[_LeanMessage]:
    messages = []
    for line in output.decode(errors="replace").splitlines():
        try:
            message = json.loads(line)
            line_number, column = int(message["pos"]["line"]), int(message["pos"]["column"])
            messages.append(_LeanMessage(str(message["severity"]), line_number, column, str(message["data"])))
        except (ValueError, TypeError, KeyError):
            continue  # other output of the checker
    return messages


def _opening(task: ProofTask) -> str:
    preamble = f"{task.preamble.rstrip()}\n" if task.preamble.strip() else ""
    return f"{preamble}{task.statement.strip()}{' := by' if task.system == 'lean' else ''}\n"


def _verdicts(trace: Trace, fault: Fault) -> list[Verdict]:
    starts = [step.start for step in trace.steps]
    last = len(starts) - 1
    wrong = last if fault.at is None else min(max(bisect_right(starts, fault.at) - 1, 0), last)
    return first_error(len(starts), wrong, fault.reason, "accepted by the checker")


def _rocq_sentences(proof: str) -> Iterator[tuple[int, str]]:
    """Each sentence's position, and its text without comments."""
    from surefoot.segment.segmenters import RocqSentences

    for start, end in RocqSentences().segment(proof):
        yield start, _without_comments(proof[start:end])


def _without_comments(sentence: str) -> str:
    parts, depth, at = [], 0, 0
    for match in re.finditer(r"\(\*|\*\)", sentence):
        parts += [sentence[at : match.start()]] if not depth else []
        depth = depth + 1 if match[0] == "(*" else max(depth - 1, 0)
        at = match.end()
    return "".join([*parts, sentence[at:] if not depth else ""])


def _shorten(message: str) -> str:
    return " ".join(message.split())[:600]


def _task(problem: Problem, system: str) -> ProofTask | None:
    try:
        task = ProofTask.of(problem)
    except ValueError as error:
        raise LabelError(f"problem {problem.id}: meta['proof'] is not a valid proof task: {error}") from error
    return task if task is not None and task.system == system else None
