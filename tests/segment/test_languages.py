"""Programs in other languages, cut at statements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import SegmentError
from surefoot.segment import segmenter
from surefoot.segment.languages import LANGUAGES

pytest.importorskip("tree_sitter", reason="tree-sitter is not installed: pip install '.[code]'")

PROGRAMS = {
    "javascript": """\
// twice
function f(a) {
|  let x = 1;
|  if (a) {
|    x = 2; x += 1;
|  } else {
|    x = 3;
  }
|  return x;
}
""",
    "go": """\
package m

|func f(a int) int {
|\tx := 1
|\tfor i := 0; i < a; i++ {
|\t\tx++
\t}
|\treturn x
}
""",
    "java": """\
class A {
|  int f(int a) {
|    while (a > 0) { a--; }
|    return a;
  }
}
""",
    "rust": """\
fn f(a: i32) -> i32 {
|    let x = 1;
|    if a > 0 {
|        return 2;
    }
|    x
}
""",
    "c": """\
int f(int a) {
|  switch (a) {
|  case 1:
|    a = 2;
|    break;
  }
|  return a;
}
""",
    "cpp": """\
#include <vector>
|int f() {
|  return 1;
}
""",
    "bash": """\
x=1
|if [ $x = 1 ]; then
|  echo ä
fi
|for i in a b; do
|  echo $i
done
""",
    "typescript": """\
interface A {
|  b: number;
}
|const f = (a: A): number => {
|  return a.b;
};
""",
}
"""Each step after the first begins behind a bar."""


def pieces(name: str, text: str) -> list[str]:
    return [text[start:end] for start, end in segmenter(name).segment(text)]


@pytest.mark.parametrize("language", PROGRAMS)
def test_statements_are_steps(language):
    expected = PROGRAMS[language].split("|")
    assert pieces(f"code:{language}", "".join(expected)) == expected


def test_every_language_is_tested_and_others_are_refused():
    assert set(PROGRAMS) == set(LANGUAGES)
    with pytest.raises(SegmentError, match="cobol"):
        segmenter("code:cobol")


def test_fences_in_known_languages_are_cut():
    text = "First:\n\n```js\nlet x = 1;\nf(x);\n```\n\nThen:\n\n```cobol\nMOVE 1.\nSTOP.\n```\n"
    assert pieces("prose-and-any-code", text) == [
        "First:\n\n",
        "```js\nlet x = 1;\n",
        "f(x);\n```\n\n",
        "Then:\n\n",
        "```cobol\nMOVE 1.\nSTOP.\n```\n",
    ]
    assert len(pieces("prose-and-code", text)) == 4


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab ={};()\n\r\té𝒳}", max_size=80), st.sampled_from(sorted(LANGUAGES)))
def test_spans_tile_what_does_not_parse(text, language):
    found = pieces(f"code:{language}", text)
    assert "".join(found) == text or not text.strip()
    assert all(piece.strip() for piece in found)
