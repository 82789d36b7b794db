"""What people reported about other graders: the pair, and the verdict that they expected."""

from __future__ import annotations

import pytest

from surefoot.answers import AnswerChecker, extract_answer

REPORTED = [
    ("huggingface/Math-Verify#14", r"\frac{1}{2006!}", r"\frac{1}{2004!}", False),
    ("huggingface/Math-Verify#14", r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", False),
    ("huggingface/Math-Verify#14", "n=1, 2, 3", "n=2, 3, 4", False),
    ("huggingface/Math-Verify#14", "D = (0, 1.5)", "D = (0, 1)", False),
    (
        "huggingface/Math-Verify#14",
        r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}",
        r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}",
        False,
    ),
    ("huggingface/Math-Verify#14", "21, 36, and 82", r"19, 46, \text{ and } 82", False),
    (
        "huggingface/Math-Verify#14",
        r"\frac{1}{3 \cdot 2^{2006}}",
        r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}",
        False,
    ),
    ("huggingface/Math-Verify#14", r"1 + \frac{1}{\mathrm{e}}", r"1 - \frac{1}{\mathrm{e}}", False),
    ("huggingface/Math-Verify#14", "2021", r"\pm 2021", False),
    ("huggingface/Math-Verify#14", "1:00", "12:00", False),
    ("huggingface/Math-Verify#14", r"1, 3, 5, \ldots, 2n-1", r"1, 2, \ldots, n", False),
    ("huggingface/Math-Verify#14", r"1:4:9:\ldots", r"1:2:3:\ldots", False),
    ("huggingface/Math-Verify#60", "3x + 4y + 14=0", "3*x-1*y+13=0", False),
    ("huggingface/Math-Verify#41", r"4\sqrt(2)", "4", False),
    ("huggingface/Math-Verify#64", r"\frac{1}{\sqrt{n}}", r"\sqrt{1/n}", True),
    ("huggingface/Math-Verify#56", r"(3, \frac{2\pi}{3})", r"\left( 3, \frac{\pi}{2} \right)", False),
    ("huggingface/Math-Verify#1", r"\frac{2}{3}", "2/3", True),
    ("huggingface/Math-Verify#37", "13", r"\text{13}", True),
    ("huggingface/Math-Verify#26", "y = -1/2*x + 3/4", "2x+4y-3=0", True),
    ("huggingface/Math-Verify#35", r"\frac12", r"\frac{1}{2}", True),
    ("huggingface/Math-Verify#10", "0 < x < 12.5", "(0, 12.5)", True),
    ("huggingface/Math-Verify#25", r"m \geq \sqrt{2}", r"m \in [\sqrt{2}, +\infty)", True),
    ("huggingface/Math-Verify#71", r"(-\infty, 3)", "x<3", True),
    ("huggingface/Math-Verify#67", r"28\%", "28", True),
    ("huggingface/Math-Verify#69", "-1 + exp(16)", "e^{16} - 1", True),
    ("huggingface/Math-Verify#69", "pi/2", r"\dfrac{\pi}{2}", True),
    ("huggingface/Math-Verify#69", "14.0 + -1.0i", "14 - i", True),
    ("huggingface/Math-Verify#69", "-2*pi", r"-2\pi", True),
    ("modelscope/ms-swift#4541", "a=1", r"a=1 \text{ or } a=-2", False),
    ("modelscope/ms-swift#4541", "a=-2 or a=1", r"a=1 \text{ or } a=-2", True),
    ("QwenLM/Qwen2.5-Math#50", "1,-2", "1,-3", False),
    ("RLHFlow/Online-DPO-R1#11", "0.0833333333333333", r"\frac{1}{12}", True),
    ("RLHFlow/Online-DPO-R1#11", "(1,4.5)", r"(1,\frac{9}{2})", True),
    ("RLHFlow/Online-DPO-R1#11", r"\frac{x}{7}+\frac{2}{7}", r"\frac{x+2}{7}", True),
    ("hiyouga/MathRuler#2", r"\pi \div 8 + 1 \div 2", r"0.5 + \frac{\pi}{8}", True),
    ("open-compass/opencompass#2593", "(x-1)(x+1)", "(x^2-1)", True),
    ("open-compass/opencompass#2593", "(a+b)(a-b)", "(a^2-b^2)", True),
    ("openai/prm800k#19", r"\frac{0.5a}{b}/0.5", r"2\frac{a}{2b}", True),
    ("EleutherAI/lm-evaluation-harness#4030", "[2,5)", "[2,5)", True),
    ("EleutherAI/lm-evaluation-harness#4031", r"\left(1,2\right)", "(1,2)", True),
    ("EleutherAI/lm-evaluation-harness#4031", r"(2, \infty)", r"(2,\infty)", True),
    ("EleutherAI/lm-evaluation-harness#3785", "3, 1, 2", "1, 2, 3", True),
    ("UKGovernmentBEIS/inspect_ai#5259", r"\frac{x}{2}", "x/2", True),
    ("UKGovernmentBEIS/inspect_ai#5259", r"2\pi r", "2*pi*r", True),
    ("UKGovernmentBEIS/inspect_ai#5259", r"\sqrt{x}", "sqrt(x)", True),
    ("UKGovernmentBEIS/inspect_ai#5259", r"\frac{n(n+1)}{2}", "n*(n+1)/2", True),
    ("UKGovernmentBEIS/inspect_ai#5259", r"\text{yes}", "yes", True),
    ("UKGovernmentBEIS/inspect_ai#838", "60%", "60", True),
    ("huggingface/open-r1#566", r"\frac{64}{400}", r"\frac{63}{400}", False),
    ("scitix/sieval#26", "n=3", "n=3k", False),
    ("bojieli/ai-agent-book#713", r"\frac{\mathrm{1,000}}{2}", "500", True),
    ("huggingface/Math-Verify#60", r"{1,3} \cup {2,4}", "{1,2,3,4}", True),
]
"""Issue, answer, reference, equal."""


@pytest.mark.parametrize(("issue", "answer", "reference", "equal"), REPORTED)
def test_what_other_graders_got_wrong(issue, answer, reference, equal):
    with AnswerChecker() as checker:
        assert checker.equal([(answer, reference), (reference, answer)]) == [equal, equal]


@pytest.mark.parametrize(
    ("issue", "answer", "reference"),
    [
        ("huggingface/Math-Verify#64", r"\forall x>0, f(x) = 0", "f(x) = 0"),
        ("scitix/sieval#28", r"f(x) = cx \text{ for any } c", "f(x) = cx"),
    ],
)
def test_a_condition_is_not_dropped(issue, answer, reference):
    with AnswerChecker() as checker:
        assert checker.grade([(answer, reference)]) == [None]
        assert checker.failures == {"unreadable": 1}


def test_a_mention_of_the_box_is_no_answer():
    # EleutherAI/lm-evaluation-harness#3477
    assert extract_answer(r"I mark my answer with \boxed. It is \boxed{7}.") == "7"
