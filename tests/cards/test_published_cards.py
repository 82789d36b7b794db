"""The cards under docs/cards: renderings of their records, valid, and answers to the four questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.cards import read_release, render_all

CARDS = Path(__file__).parents[2] / "docs" / "cards"
PROCESS = {
    "quickstart": "The reasoning steps of 500 solutions (1,683 steps, cut by line), written by a policy",
    "prm800k": "The reasoning steps of 2,140 solutions (8,810 steps",
    "rl": "each step of its solutions was rewarded by the credit rule 'min-form' from runs/quickstart/prm",
}
LABELS = {
    "quickstart": "is Cohen's kappa with the true labels of these steps.",
    "prm800k": "prm800k learned from labels of the source 'human'.",
    "rl": "The reward model runs/quickstart/prm learned from labels of the source 'monte-carlo-soft'.",
}
TESTED = {
    "quickstart": "prm weighted vote min less majority voting, 8 samples",
    "prm800k": "Step AUC on 22 held-out problems is ",
    "rl": "Held-out accuracy at the end less the start on 200 problems is ",
}
FAILURES = {
    "quickstart": "is how much the edit of style with the largest effect, split step, lowers the score",
    "prm800k": "a gain over length and position alone is not decided",
    "rl": "that nothing was lost is not decided",
}


@pytest.mark.parametrize("name", ["quickstart", "prm800k", "rl"])
def test_a_published_card(name: str):
    from huggingface_hub import ModelCard

    folder = CARDS / name
    for file, content in render_all(read_release(folder / "card.json")).items():
        assert (folder / file).read_text("utf-8") == content
    text = (folder / "README.md").read_text("utf-8")
    titles = (
        ("What process was supervised", PROCESS),
        ("How labels were produced", LABELS),
        ("Where the method was tested", TESTED),
        ("What failures remain", FAILURES),
    )
    for title, sentences in titles:
        assert sentences[name] in text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert ModelCard.load(folder / "README.md").data.eval_results
    assert {path.name for path in folder.iterdir()} == {"README.md", "card.html", "card.json"}
