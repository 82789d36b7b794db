"""Word problems in English with a known truth for every step: templates, and random graphs of relations.

A problem is a text and its *quantities*: what can be computed from the text, by which operation on which
numbers. A solution computes one quantity a line, in a graph after the sentence that gives it, and ends with
the answer::

    Ann counts 34 cards. Ben has 17 more than Ann. Ben has 3 times as many as Cara. How many does Cara have?

    Ben has 17 more than Ann. Ben has Ann's 34 + 17 = 51.
    Ben has 3 times as many as Cara. Cara has Ben's 51 / 3 = 17.
    Answer: 17.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.records import Problem

NAMES: Final = ("Ann", "Ben", "Cara", "Dev", "Ela", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kai", "Lena")
ITEMS: Final = ("pencils", "marbles", "stickers", "apples", "cards", "shells", "coins", "stamps")
MOST: Final = 999
"""No value of a problem is above it."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What one line of a solution computes: ``left symbol right``."""

    left: int
    symbol: str
    right: int
    owners: tuple[str, str] = ("", "")
    """In a graph whose numbers they are; empty for a number of the text."""
    fact: str = ""
    """In a graph the sentence of the text that gives it, without the full stop."""
    needs: tuple[str, ...] = ()
    """Labels of the quantities that must be known before."""

    @property
    def value(self) -> int:
        """The exact result."""
        result = calculate(self.left, self.symbol, self.right)
        if result is None:
            raise RecordError(f"{self.left} {self.symbol} {self.right} is not a whole number")
        return result


def calculate(left: int, symbol: str, right: int) -> int | None:
    """``left symbol right``, or nothing where one of the three is no whole number above 0."""
    match symbol:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case _:
            result = left // right if right and left % right == 0 else 0
    return result if min(left, right, result) > 0 else None


@dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A problem with all quantities that can be computed, by what their lines begin with."""

    text: str
    family: str
    """``graph``, or the name of the template."""
    quantities: dict[str, Quantity]
    goal: str
    needed: tuple[str, ...]
    """Labels of the quantities that the goal needs, in the order of the worked solution."""

    @property
    def answer(self) -> int:
        """The goal's value."""
        return self.quantities[self.goal].value

    def line(self, label: str) -> str:
        """The correct line of a quantity."""
        return written(label, self.quantities[label])

    def solution(self) -> str:
        """A correct solution without a line that is not needed."""
        return "".join(map(self.line, self.needed)) + f"Answer: {self.answer}.\n"

    def record(self) -> Problem:
        """The problem as a record; its quantities are in ``meta["words"]``, which policies do not see."""
        quantities = {
            label: [q.left, q.symbol, q.right, *q.owners, q.fact] for label, q in self.quantities.items()
        }
        about = {
            "quantities": quantities,
            "goal": self.goal,
            "family": self.family,
            "steps": len(self.needed),
        }
        return Problem(text=self.text, answer=str(self.answer), source="words", meta={"words": about})


def written(label: str, quantity: Quantity, result: int | None = None) -> str:
    """A line, with another ``result`` than the exact one if that is given."""
    value = quantity.value if result is None else result
    left, right = (f"{owner}'s " if owner else "" for owner in quantity.owners)
    cited = f"{quantity.fact}. " if quantity.fact else ""
    return f"{cited}{label} {left}{quantity.left} {quantity.symbol} {right}{quantity.right} = {value}.\n"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is drawn. The default is what the models are trained on."""

    graphs: float = 0.5
    """Share of graphs; the others are templates."""
    people: tuple[int, int] = (3, 4)
    steps: tuple[int, int] = (2, 3)
    """Fewest and most lines that a graph's goal needs."""
    chain: float = 0.5
    """Chance that a person is compared with the one before; else with anybody before."""
    inverse: float = 0.6
    """Chance that a comparison says the inverse of what has to be calculated, where it can."""
    together: float = 0.15
    """Chance that a person has as many as two others together."""
    start: int = 50
    """The largest number of things that the text says a person has."""
    change: int = 30
    """The largest number of things more or fewer."""
    distractor: float = 0.2
    """Chance of a sentence about something else."""
    opinion: float = 0.05
    """Chance of a wrong answer that the writer of the problem believes in."""
    held_out: bool = False
    """Templates and wordings that training never shows, in place of those that it shows."""


def draw_problem(rng: random.Random, setting: Setting | None = None) -> WordProblem:
    """Draw one problem."""
    setting = setting or Setting()
    while True:
        if rng.random() < setting.graphs:
            drawn = _draw_graph(rng, setting)
        else:
            drawn = _draw_template(rng, held_out=setting.held_out)
        if drawn and drawn.accepted:
            return drawn.problem(rng, setting)


def draw_problems(
    count: int, *, seed: int, setting: Setting | None = None, exclude: Sequence[Problem] = ()
) -> list[Problem]:
    """``count`` records of distinct problems, none with a text of ``exclude``."""
    rng = random.Random(seed)
    texts = {problem.text for problem in exclude}
    problems: list[Problem] = []
    while len(problems) < count:
        problem = draw_problem(rng, setting)
        if problem.text not in texts:
            texts.add(problem.text)
            problems.append(problem.record())
    return problems


def read_problem(problem: Problem) -> tuple[dict[str, Quantity], str]:
    """Quantities and goal of a record. Raises ``RecordError`` for a problem of another world."""
    about: Any = problem.meta.get("words")
    try:
        quantities = {
            str(label): Quantity(
                left=int(left), symbol=str(symbol), right=int(right), owners=(str(a), str(b)), fact=str(fact)
            )
            for label, (left, symbol, right, a, b, fact) in about["quantities"].items()
        }
        goal = str(about["goal"])
        quantities[goal].value  # noqa: B018 - raises for a goal that cannot be computed
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RecordError(
            f'problem {problem.id} is not of the word world: no readable meta["words"]'
        ) from error
    return quantities, goal


@dataclass(kw_only=True)
class _Draft:
    family: str
    sentences: list[str]
    question: str
    quantities: dict[str, Quantity]
    goal: str
    names: Sequence[str] = NAMES
    needed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._visit(self.goal)

    def _visit(self, label: str) -> None:
        for other in self.quantities[label].needs if label in self.quantities else ():
            self._visit(other)
        if label in self.quantities and label not in self.needed:
            self.needed.append(label)

    @property
    def accepted(self) -> bool:
        results = [calculate(q.left, q.symbol, q.right) for q in self.quantities.values()]
        return all(result is not None and result <= MOST for result in results)

    def problem(self, rng: random.Random, setting: Setting) -> WordProblem:
        sentences = list(self.sentences)
        if rng.random() < setting.distractor:
            sentences.insert(rng.randint(0, len(sentences)), _distractor(rng, self.names))
        sentences.append(self.question)
        if rng.random() < setting.opinion:
            right = self.quantities[self.goal].value
            believed = right + rng.choice([n for n in range(-9, 10) if n and right + n > 0])
            sentences.append(f"I think it is {believed}.")
        return WordProblem(
            text=" ".join(sentences),
            family=self.family,
            quantities=self.quantities,
            goal=self.goal,
            needed=tuple(self.needed),
        )


def _distractor(rng: random.Random, names: Sequence[str]) -> str:
    number = rng.randint(2, 99)
    return rng.choice(
        (
            f"{rng.choice(names)} is {number} years old.",
            f"It is {number} degrees outside.",
            f"The bus comes every {number} minutes.",
        )
    )


def _draw_graph(rng: random.Random, setting: Setting) -> _Draft:
    """People, each of whom has a number of things by a relation to people before; sentences in any order."""
    steps = rng.randint(*setting.steps)
    fewest, most = setting.people
    while True:
        draft = _try_graph(rng, setting, rng.randint(max(fewest, steps + 1), max(most, steps + 1)), steps)
        if draft:
            return draft


def _try_graph(rng: random.Random, setting: Setting, people: int, steps: int) -> _Draft | None:
    names = rng.sample(NAMES, people)
    item = rng.choice(ITEMS)
    values: dict[str, int] = {}
    quantities: dict[str, Quantity] = {}
    sentences = []
    subjects: set[str] = set()
    for number, name in enumerate(names):
        if number == 0 or (number == 1 and rng.random() < 0.5):
            values[name] = rng.randint(2, setting.start)
            sentences.append(f"{name} counts {values[name]} {item}.")
            continue
        for _ in range(20):
            quantity, subject, sentence = _relation(rng, name, values, subjects, setting)
            result = calculate(quantity.left, quantity.symbol, quantity.right)
            if result is not None and 1 < result < 150:
                break
        else:
            return None
        values[name], quantities[_holds(name)] = result, replace(quantity, fact=sentence.rstrip("."))
        subjects.add(subject)
        sentences.append(sentence)
    rng.shuffle(sentences)
    goals = [name for name in names if _holds(name) in quantities]
    drafts = [
        _Draft(
            family="graph",
            sentences=sentences,
            question=f"How many {item} does {name} have?",
            quantities=quantities,
            goal=_holds(name),
            names=names,
        )
        for name in goals
    ]
    drafts = [draft for draft in drafts if len(draft.needed) == steps]
    return rng.choice(drafts) if drafts else None


def _holds(name: str) -> str:
    return f"{name} has"


def _relation(
    rng: random.Random, name: str, values: dict[str, int], subjects: set[str], setting: Setting
) -> tuple[Quantity, str, str]:
    """How many ``name`` has, from one or two others; the subject of the sentence that says so, and it.

    A person is the subject of one comparison at most. So a comparison of ``name`` with another is about the
    other, and says the inverse of what has to be calculated, only where that one is no subject yet.
    """
    known = list(values)
    other = known[-1] if rng.random() < setting.chain else rng.choice(known)
    inverse = other not in subjects and rng.random() < setting.inverse
    first, second = (other, name) if inverse else (name, other)
    if not inverse and len(values) > 1 and rng.random() < setting.together:
        third = rng.choice([each for each in values if each != other])
        quantity = Quantity(
            left=values[other],
            symbol="+",
            right=values[third],
            owners=(other, third),
            needs=(_holds(other), _holds(third)),
        )
        return quantity, name, f"{name} has as many as {other} and {third} together."
    kind = rng.choice(("more", "fewer", "times"))
    right = rng.randint(2, 5) if kind == "times" else rng.randint(2, setting.change)
    relation = "times as many as" if kind == "times" else f"{kind} than"
    if setting.held_out:
        sentence = f"For {first} there are {right} {relation.replace('than', 'than for')} {second}."
        sentence = sentence.replace("many as", "many as for")
    else:
        sentence = f"{first} has {right} {relation} {second}."
    straight, back = {"more": "+-", "fewer": "-+", "times": "*/"}[kind]
    quantity = Quantity(
        left=values[other],
        symbol=back if inverse else straight,
        right=right,
        owners=(other, ""),
        needs=(_holds(other),),
    )
    return quantity, first, sentence


Drawn = tuple[Sequence[str], str, Sequence[tuple[str, int, str, int]]]
"""Sentences, question, and the lines of the solution: what a line begins with, and its operation."""


def _draw_template(rng: random.Random, *, held_out: bool) -> _Draft:
    family = rng.choice(HELD_OUT if held_out else SEEN)
    sentences, question, lines = family(rng, rng.choice(NAMES), rng.choice(ITEMS))
    quantities, before = {}, ""
    for label, left, symbol, right in lines:
        quantities[label] = Quantity(left=left, symbol=symbol, right=right, needs=(before,) if before else ())
        before = label
    return _Draft(
        family=family.__name__.strip("_"),
        sentences=list(sentences),
        question=question,
        quantities=quantities,
        goal=before,
    )


def _boxes(rng: random.Random, name: str, item: str) -> Drawn:
    boxes, each = rng.randint(3, 9), rng.randint(11, 29)
    gone = rng.randint(2, boxes * each - 2)
    facts = rng.choice(
        (
            f"{name} buys {boxes} boxes of {item} with {each} in each box.",
            f"Each of {boxes} boxes holds {each} {item}.",
        )
    )
    gift = rng.choice((f"{name} gives {gone} to a friend.", f"A friend takes {gone} of the {item}."))
    lines = (("The boxes hold", boxes, "*", each), ("There are left", boxes * each, "-", gone))
    return (facts, gift), f"How many {item} are left?", lines


def _wages(rng: random.Random, name: str, _: str) -> Drawn:
    hours, wage, days = rng.randint(3, 8), rng.randint(7, 19), rng.randint(2, 4)
    spent = rng.randint(5, 60)
    facts = rng.choice(
        (
            f"{name} works {hours} hours a day and earns {wage} dollars an hour.",
            f"{name} earns {wage} dollars an hour and works {hours} hours a day.",
        )
    )
    lines = (
        ("A day brings", hours, "*", wage),
        ("All days bring", hours * wage, "*", days),
        ("There are left", hours * wage * days, "-", spent),
    )
    sentences = (facts, f"{name} works {days} days.", f"{name} spends {spent} dollars on a book.")
    return sentences, f"How many dollars does {name} have left?", lines


def _walk(rng: random.Random, name: str, _: str) -> Drawn:
    first, times, less = rng.randint(7, 25), rng.randint(2, 4), rng.randint(2, 13)
    second = first * times
    lines = (
        ("On Tuesday it is", first, "*", times),
        ("On Friday it is", second, "-", less),
        ("Both days make", second, "+", second - less),
    )
    sentences = (
        f"{name} walks {first} miles on Monday.",
        f"On Tuesday {name} walks {times} times as far.",
        rng.choice((f"On Friday {name} walks {less} miles less than on Tuesday.",)),
    )
    return sentences, f"How many miles does {name} walk on Tuesday and Friday?", lines


def _share(rng: random.Random, name: str, item: str) -> Drawn:
    children, each, found = rng.randint(3, 7), rng.randint(14, 30), rng.randint(3, 40)
    lines = (
        ("In all there are", children * each - found, "+", found),
        ("Each child gets", children * each, "/", children),
    )
    sentences = (
        f"{name} has {children * each - found} {item}.",
        rng.choice((f"{name} finds {found} more.", f"Then {found} more are found.")),
        rng.choice((f"{children} children share them.", f"They are shared by {children} children.")),
    )
    return sentences, f"How many {item} does each child get?", lines


def _sale(rng: random.Random, name: str, _: str) -> Drawn:
    percent, part = rng.choice(((10, 10), (20, 5), (25, 4), (50, 2)))
    off, coats = rng.randint(3, 19), rng.randint(2, 5)
    price = off * part
    facts = rng.choice(
        (f"In the sale it costs {percent} percent less.", f"The shop takes {percent} percent off the price.")
    )
    lines = (
        ("The price falls by", price, "/", part),
        ("One coat costs", price, "-", off),
        ("All coats cost", price - off, "*", coats),
    )
    sentences = (f"A coat costs {price} dollars.", facts, f"{name} buys {coats} coats.")
    return sentences, f"How many dollars does {name} pay?", lines


def _fence(rng: random.Random, name: str, _: str) -> Drawn:
    wide, long, cost = rng.randint(3, 29), rng.randint(3, 29), rng.randint(2, 7)
    facts = rng.choice(
        (
            f"A garden is {wide} meters wide and {long} meters long.",
            f"A garden is {long} meters long and {wide} meters wide.",
        )
    )
    lines = (
        ("Two sides are", wide, "+", long),
        ("All sides are", wide + long, "*", 2),
        ("The fence costs", (wide + long) * 2, "*", cost),
    )
    sentences = (facts, f"{name} builds a fence around it.", f"The fence costs {cost} dollars a meter.")
    return sentences, f"How many dollars does {name} pay?", lines


def _pages(rng: random.Random, name: str, _: str) -> Drawn:
    days, each, left = rng.randint(3, 9), rng.randint(6, 24), rng.randint(5, 90)
    lines = ((f"{name} has read", days, "*", each), ("There are left", days * each + left, "-", days * each))
    sentences = (
        f"A book has {days * each + left} pages.",
        rng.choice(
            (
                f"{name} reads {each} pages a day for {days} days.",
                f"For {days} days {name} reads {each} pages a day.",
            )
        ),
    )
    return sentences, "How many pages are left?", lines


def _trip(rng: random.Random, name: str, _: str) -> Drawn:
    """Held out: a rate, and a way back."""
    hours, fast, more = rng.randint(3, 9), rng.randint(12, 49), rng.randint(5, 60)
    lines = (
        ("In all there are", hours, "*", fast),
        ("Both days make", hours * fast, "+", more),
    )
    sentences = (
        f"On Monday {name} walks {hours} hours and {fast} miles an hour.",
        f"On Friday {name} walks {more} miles.",
    )
    return sentences, f"How many miles does {name} walk on Monday and Friday?", lines


def _coats(rng: random.Random, name: str, _: str) -> Drawn:
    """Held out: a price, and what is left."""
    coats, price, left = rng.randint(2, 9), rng.randint(12, 60), rng.randint(5, 90)
    lines = (
        ("All coats cost", coats, "*", price),
        ("There are left", coats * price + left, "-", coats * price),
    )
    sentences = (
        f"{name} has {coats * price + left} dollars.",
        f"{name} buys {coats} coats.",
        f"A coat costs {price} dollars.",
    )
    return sentences, f"How many dollars does {name} have left?", lines


SEEN: Final[tuple[Callable[[random.Random, str, str], Drawn], ...]] = (
    *(_boxes, _wages, _walk, _share, _sale, _fence, _pages),
)
HELD_OUT: Final[tuple[Callable[[random.Random, str, str], Drawn], ...]] = (_trip, _coats)
