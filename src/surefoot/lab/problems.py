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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from surefoot.errors import RecordError
from surefoot.records import Problem

NAMES: Final = ("Ann", "Ben", "Cara", "Dev", "Ela", "Finn", "Gia", "Hugo", "Ines", "Jon", "Kai", "Lena")
ITEMS: Final = ("pencils", "marbles", "stickers", "apples", "cards", "shells", "coins", "stamps")
MOST: Final = 999
"""No value of a problem is above it."""
_OTHER: Final = "problem {} is not of the lab: {}; surefoot.lab.generate_problems writes those that are"
_MOST_QUANTITIES, _LARGEST, _LONGEST = 100, 9999, 80
"""What a record may hold: quantities, the numbers that one is computed from, characters of a text."""
OPINION: Final = "I think it is {}."
"""What whoever asks may believe."""


@dataclass(frozen=True, kw_only=True)
class Calculation:
    """What one line of a solution computes: ``left symbol right``."""

    left: int
    symbol: str
    right: int
    owners: tuple[str, str] = ("", "")
    """In a graph whose numbers they are; empty for a number of the text."""
    fact: str = ""
    """In a graph the sentence of the text that gives it, without the full stop."""

    @property
    def value(self) -> int:
        """The exact result. Raises ``RecordError`` if it is not a whole number above 0."""
        result = calculate(self.left, self.symbol, self.right)
        if result is None:
            raise RecordError(f"{self.left} {self.symbol} {self.right} is not a whole number above 0")
        return result

    def line(self, label: str, result: int | None = None) -> str:
        """The line of a solution that computes it, with another ``result`` if one is given."""
        owner_a, owner_b = (f"{owner}'s " if owner else "" for owner in self.owners)
        cited = f"{self.fact}. " if self.fact else ""
        value = self.value if result is None else result
        return f"{cited}{label} {owner_a}{self.left} {self.symbol} {owner_b}{self.right} = {value}.\n"


Quantities = Mapping[str, Calculation]
"""What can be computed in a problem, by the label that its line begins with."""


def calculate(left: int, symbol: str, right: int) -> int | None:
    """``left symbol right``, or ``None`` where one of the three is not a whole number above 0."""
    match symbol:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case "/" if right and left % right == 0:
            result = left // right
        case _:
            return None
    return result if min(left, right, result) > 0 else None


def holds(name: str) -> str:
    """Label of the number of things that a person of a graph has."""
    return f"{name} has"


@dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A problem with all quantities that can be computed."""

    text: str
    family: str
    """``graph``, or the name of the template."""
    quantities: Quantities
    goal: str
    """Label of the quantity asked for."""

    @property
    def answer(self) -> int:
        """The goal's value."""
        return self.quantities[self.goal].value

    @property
    def needed(self) -> tuple[str, ...]:
        """Labels of the quantities that the goal needs, in the order of the worked solution."""
        return needed(self.quantities, self.goal)

    def record(self) -> Problem:
        """The problem as a record; its quantities are in ``meta["lab"]``, which policies do not see."""
        quantities = {
            label: [q.left, q.symbol, q.right, *q.owners, q.fact] for label, q in self.quantities.items()
        }
        about = {"quantities": quantities, "goal": self.goal, "family": self.family}
        return Problem(text=self.text, answer=str(self.answer), source="lab", meta={"lab": about})


def needed(quantities: Quantities, goal: str) -> tuple[str, ...]:
    """Labels of the quantities that ``goal`` needs, itself included, each after those that it needs."""
    if not quantities[goal].fact:
        return tuple(quantities)  # a template, whose lines are all needed
    order: list[str] = []
    seen: set[str] = set()

    def visit(label: str) -> None:
        if label in quantities and label not in seen:
            seen.add(label)
            for owner in quantities[label].owners:
                visit(holds(owner))
            order.append(label)

    visit(goal)
    return tuple(order)


def worked_solution(problem: Problem) -> str:
    """A correct solution, with the lines that are needed. Raises ``RecordError`` as ``read_problem`` does."""
    quantities, goal = read_problem(problem)
    lines = [quantities[label].line(label) for label in needed(quantities, goal)]
    return "".join([*lines, f"Answer: {quantities[goal].value}.\n"])


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Shares and sizes of problems. The models are trained on the default."""

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
        is_graph = rng.random() < setting.graphs
        draft = _draw_graph(rng, setting) if is_graph else _draw_template(rng, held_out=setting.held_out)
        results = [calculate(q.left, q.symbol, q.right) for q in draft.quantities.values()]
        if all(result is not None and result <= MOST for result in results):
            return draft.problem(rng, setting)


def generate_problems(
    count: int, *, seed: int, setting: Setting | None = None, exclude: Sequence[Problem] = ()
) -> list[Problem]:
    """``count`` distinct problems, none with a text of ``exclude`` (so that splits do not overlap).

    Raises ``ValueError`` if the setting has too few.
    """
    rng = random.Random(seed)
    texts = {problem.text for problem in exclude}
    problems: list[Problem] = []
    misses = 0
    while len(problems) < count:
        problem = draw_problem(rng, setting)
        if problem.text not in texts:
            texts.add(problem.text)
            problems.append(problem.record())
        elif (misses := misses + 1) > 1000 + 100 * count:
            raise ValueError(f"this setting has fewer than {count} distinct problems")
    return problems


def read_problem(problem: Problem) -> tuple[Quantities, str]:
    """Quantities and goal of a record. Raises ``RecordError`` for a problem of another world."""
    match problem.meta.get("lab"):
        case {"quantities": dict(rows), "goal": str(goal)} if goal in rows and len(rows) <= _MOST_QUANTITIES:
            return {label: _read_quantity(problem, label, row) for label, row in rows.items()}, goal
    raise RecordError(_OTHER.format(problem.id, 'no readable meta["lab"]'))


def _read_quantity(problem: Problem, label: object, row: object) -> Calculation:
    match label, row:
        case str(), [int(a), "+" | "-" | "*" | "/" as symbol, int(b), str(first), str(second), str(fact)]:
            is_short = max(map(len, (label, first, second, fact))) <= _LONGEST
            is_small = type(a) is type(b) is int and max(a, b) <= _LARGEST
            if is_short and is_small and calculate(a, symbol, b) is not None:
                return Calculation(left=a, symbol=symbol, right=b, owners=(first, second), fact=fact)
    why = f"its quantity {str(label)[:_LONGEST]!r} cannot be read, or is not a whole number above 0"
    raise RecordError(_OTHER.format(problem.id, why))


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A problem before its sentences are joined."""

    family: str
    sentences: Sequence[str]
    question: str
    quantities: Quantities
    goal: str
    names: Sequence[str] = NAMES
    """People whom a sentence about something else may name."""

    def problem(self, rng: random.Random, setting: Setting) -> WordProblem:
        sentences = list(self.sentences)
        if rng.random() < setting.distractor:
            sentences.insert(rng.randint(0, len(sentences)), _distractor(rng, self.names))
        sentences.append(self.question)
        if rng.random() < setting.opinion:
            right = self.quantities[self.goal].value
            believed = right + rng.choice([n for n in range(-9, 10) if n and right + n > 0])
            sentences.append(OPINION.format(believed))
        text = " ".join(sentences)
        return WordProblem(text=text, family=self.family, quantities=self.quantities, goal=self.goal)


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
    quantities: dict[str, Calculation] = {}
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
        values[name], quantities[holds(name)] = result, replace(quantity, fact=sentence.rstrip("."))
        subjects.add(subject)
        sentences.append(sentence)
    rng.shuffle(sentences)
    goals = [name for name in names if holds(name) in quantities]
    goals = [name for name in goals if len(needed(quantities, holds(name))) == steps]
    if not goals:
        return None
    name = rng.choice(goals)
    return _Draft(
        family="graph",
        sentences=sentences,
        question=f"How many {item} does {name} have?",
        quantities=quantities,
        goal=holds(name),
        names=names,
    )


def _relation(
    rng: random.Random, name: str, values: dict[str, int], subjects: set[str], setting: Setting
) -> tuple[Calculation, str, str]:
    """How many ``name`` has, from one or two others; the subject of the sentence that says so, and it.

    A person is the subject of one comparison at most. So a comparison of ``name`` with another is about the
    other, and says the inverse of the calculation, only where that one is not a subject yet.
    """
    holders = list(values)
    other = holders[-1] if rng.random() < setting.chain else rng.choice(holders)
    inverse = other not in subjects and rng.random() < setting.inverse
    first, second = (other, name) if inverse else (name, other)
    if not inverse and len(values) > 1 and rng.random() < setting.together:
        third = rng.choice([each for each in values if each != other])
        quantity = Calculation(left=values[other], symbol="+", right=values[third], owners=(other, third))
        return quantity, name, f"{name} has as many as {other} and {third} together."
    kind = rng.choice(("more", "fewer", "times"))
    right = rng.randint(2, 5) if kind == "times" else rng.randint(2, setting.change)
    relation = "times as many as" if kind == "times" else f"{kind} than"
    if setting.held_out:
        sentence = f"For {first} there are {right} {relation.replace('than', 'than for')} {second}."
        sentence = sentence.replace("many as", "many as for")
    else:
        sentence = f"{first} has {right} {relation} {second}."
    symbol = {"more": "+-", "fewer": "-+", "times": "*/"}[kind][inverse]
    quantity = Calculation(left=values[other], symbol=symbol, right=right, owners=(other, ""))
    return quantity, first, sentence


Drawn = tuple[Sequence[str], str, Sequence[tuple[str, int, str, int]]]
"""Sentences, question, and the lines of the solution: what a line begins with, and its operation."""


def _draw_template(rng: random.Random, *, held_out: bool) -> _Draft:
    family = rng.choice(HELD_OUT if held_out else SEEN)
    sentences, question, lines = family(rng, rng.choice(NAMES), rng.choice(ITEMS))
    return _Draft(
        family=family.__name__.strip("_"),
        sentences=sentences,
        question=question,
        quantities={label: Calculation(left=a, symbol=symbol, right=b) for label, a, symbol, b in lines},
        goal=lines[-1][0],
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
    children, each, extra = rng.randint(3, 7), rng.randint(14, 30), rng.randint(3, 40)
    lines = (
        ("In all there are", children * each - extra, "+", extra),
        ("Each child gets", children * each, "/", children),
    )
    sentences = (
        f"{name} has {children * each - extra} {item}.",
        rng.choice((f"{name} finds {extra} more.", f"Then {extra} more are found.")),
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
    days, each, remaining = rng.randint(3, 9), rng.randint(6, 24), rng.randint(5, 90)
    lines = (
        (f"{name} has read", days, "*", each),
        ("There are left", days * each + remaining, "-", days * each),
    )
    sentences = (
        f"A book has {days * each + remaining} pages.",
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
    """Held out: a price, and the money after buying."""
    coats, price, remaining = rng.randint(2, 9), rng.randint(12, 60), rng.randint(5, 90)
    lines = (
        ("All coats cost", coats, "*", price),
        ("There are left", coats * price + remaining, "-", coats * price),
    )
    sentences = (
        f"{name} has {coats * price + remaining} dollars.",
        f"{name} buys {coats} coats.",
        f"A coat costs {price} dollars.",
    )
    return sentences, f"How many dollars does {name} have left?", lines


SEEN: Final[tuple[Callable[[random.Random, str, str], Drawn], ...]] = (
    *(_boxes, _wages, _walk, _share, _sale, _fence, _pages),
)
HELD_OUT: Final[tuple[Callable[[random.Random, str, str], Drawn], ...]] = (_trip, _coats)
