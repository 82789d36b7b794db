"""Methods as text: ``NAME:setting=value,…``."""

from dataclasses import dataclass

import pytest
from pydantic import BaseModel, Field

from surefoot.errors import RunError
from surefoot.spec import method_text, parse_method


class Inner(BaseModel):
    kind: str = "soft"
    rollouts: int = Field(default=8, ge=1)


class Outer(BaseModel, extra="forbid"):
    names: tuple[str, ...] = ()
    keep: bool = False
    share: float | None = None
    inner: Inner = Inner()


@dataclass(frozen=True)
class Plain:
    max_tokens: int = 4


METHODS = {"outer": Outer, "plain_one": Plain}


def parsed(text: str):
    return parse_method(text, METHODS, what="method")


def test_values_become_the_types_of_their_fields() -> None:
    text = "outer:names=a+b,keep=true,share=0.5,inner.kind=hard,inner.rollouts=2"
    expected = Outer(names=("a", "b"), keep=True, share=0.5, inner=Inner(kind="hard", rollouts=2))
    assert parsed(text) == expected
    assert parsed("outer") == Outer()


def test_names_are_written_with_either_sign() -> None:
    for text in ("plain-one:max-tokens=7", "plain_one:max_tokens=7"):
        assert parse_method(text, METHODS, what="method") == Plain(max_tokens=7)


def test_a_value_may_contain_colons_and_equals_signs() -> None:
    assert parsed("outer:names=http://host:1/v1?a=b").names == ("http://host:1/v1?a=b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("outr", "unknown method 'outr'; did you mean 'outer'?"),
        ("x", "unknown method 'x'; choose from outer, plain-one"),
        ("", "unknown method ''; choose from outer, plain-one"),
        ("outer:shar=1", "unknown setting of outer 'shar'; did you mean 'share'?"),
        ("outer:name=x", "unknown setting of outer 'name'; did you mean 'names'?"),
        ("outer:inner.kinds=x", "unknown setting of outer 'kinds'; did you mean 'kind'?"),
        ("outer:inner.kind.deep=x", "'kind' holds no settings"),
        ("outer:inner=x", "'inner' holds settings: write inner.SETTING=VALUE"),
        ("outer:share=1,share=2", "share is set twice"),
        ("outer:share", "write 'share' as SETTING=VALUE"),
        ("outer:share=1,", "write '' as SETTING=VALUE"),
        ("outer:share=much", "share: Input should be a valid number"),
        ("outer:inner.rollouts=0", "inner.rollouts: Input should be greater than or equal to 1"),
    ],
)
def test_a_text_that_is_not_a_method_says_why(text: str, message: str) -> None:
    with pytest.raises(RunError) as error:
        parsed(text)
    assert str(error.value).startswith(f"{text!r}: {message}")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("outer", "outer"),
        ("outer:keep=false,inner.rollouts=8", "outer"),
        ("outer:share=0.50,names=a+b,keep=yes", "outer:names=a+b,keep=true,share=0.5"),
        ("outer:inner.kind=hard,inner.rollouts=02", "outer:inner.kind=hard,inner.rollouts=2"),
    ],
)
def test_equal_settings_have_one_text_that_makes_them(given: str, text: str) -> None:
    settings = parse_method(given, METHODS, what="method")
    assert method_text("outer", settings) == text
    assert parse_method(text, METHODS, what="method") == settings
