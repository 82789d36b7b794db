"""The commands of the program. A module is imported when its command is chosen, so ``--help`` is quick.

To add a command, write its settings class (:mod:`surefoot.cli.settings`) and add one line to the table:
command, ``module:Class`` below ``surefoot.cli`` (none for a group), and line of help. ``--help`` lists the
commands in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_TABLE = """
quickstart | quickstart:Quickstart | Run the whole pipeline on the small built-in world.
import | import_export:Import | Read data in any supported format as problems, traces and labels.
inspect | inspect:Inspect | Show what a file contains and which steps look wrong, without a model.
segment | import_export:SegmentTraces | Cut traces into steps again.
sample | sample:SampleTraces | Sample solutions from a policy and grade their answers.
label | label.command:Label | Label the steps of traces: mc, judge, verify …
train |  | Train reward models.
train prm | train:TrainPRM | A process reward model: one score per step.
train orm | train:TrainORM | An outcome reward model: one score per solution.
train implicit | train:TrainImplicit | An implicit PRM: log-ratios of two language models.
train verifier | train:TrainVerifier | A generative verifier: a critique, then yes or no.
train probe | train:TrainProbe | A linear probe on a policy's hidden states.
rl | rl:RL | Train a policy with step rewards, outcome rewards, or both.
imitate | imitate:Imitate | Train a policy on an expert's steps, or on its own correct solutions.
score | score:Score | Score one solution or a file of traces with a reward model.
execute | sample:Execute | Run programs on their visible tests.
select | select:Select | Choose one trace per problem and report its accuracy.
reward | reward:Reward | Turn step labels and scores of agent runs into a reward for every turn.
search | search:RunSearch | Search with a reward model: beam, DVTS, REBASE, particles, MCTS …
evaluate | evaluate:Evaluate | Measure labels, scorers, judges and monitors.
audit | audit:Audit | Test scorers, or a policy's reasoning, for known failures.
lineage | cards:Lineage | Trace a checkpoint or file back to its sources and their licences.
card |  | State what a model is and was measured to do, and check it.
card build | cards:CardBuild | Build the card of runs, from their files.
card check | cards:CardCheck | Compute every figure again; fail if the card does not hold.
guard |  | Check the tool calls of agents by a tool policy.
guard check | guard:CheckPolicy | Replay a tool policy over recorded runs.
guard fit | guard:Fit | Fit the score threshold on your own recorded runs.
guard hook | guard:Hook | Check the calls of Claude Code before they are made, as its hook.
guard mcp | guard:Mcp | Run an MCP server behind the guard.
export | import_export:Export | Write labelled traces in the format of another program.
serve | serve:Serve | Serve an OpenAI-compatible gateway that verifies answers, and the web pages.
serve keys |  | Manage the API keys of the server.
serve keys add | serve:AddKey | Create an API key.
serve keys list | serve:ListKeys | List the API keys.
serve keys revoke | serve:RevokeKey | Revoke a key.
serve users |  | Manage the accounts of the web pages.
serve users add | serve:AddUser | Create an account.
serve prune | serve:Prune | Delete old answers.
serve sessions | serve:Sessions | Export recorded sessions as traces and scores.
doctor | servers:Doctor | Show what an OpenAI-compatible server can do.
"""

_ROWS = {path: (name, text) for path, name, text in (row.split(" | ") for row in _TABLE.strip().split("\n"))}
COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {path: row for path, row in _ROWS.items() if row[0]}
)
"""Each command with its settings class and its line of help."""
GROUPS: Final[Mapping[str, str]] = MappingProxyType(
    {path: row[1] for path, row in _ROWS.items() if any(other.startswith(f"{path} ") for other in _ROWS)}
)
"""Groups of commands with their line of help."""
