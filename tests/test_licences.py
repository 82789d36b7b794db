"""tools/licences.py: which licences are allowed, and which packages are exceptions."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import licences


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND BSD-3-Clause", True),
        ("GPL-2.0-only OR MIT", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("LGPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("Proprietary", False),
    ],
)
def test_each_part_of_a_licence_is_allowed(stated, allowed):
    assert licences.is_allowed(stated) is allowed


def test_a_package_without_a_licence_or_with_another_one_is_named():
    def component(name, *entries):
        return {"name": name, "version": "1", "licenses": list(entries)}

    lgpl = {"license": {"id": "LGPL-3.0-only"}}
    good = [
        component("a", {"expression": "MIT"}),
        component("b", {"license": {"name": "License :: OSI Approved :: BSD License"}}),
        component("psycopg", lgpl),
        component("cuda-toolkit"),
    ]
    assert licences.faults(good) == []
    assert licences.faults([*good, component("no-such-package"), component("d", lgpl)]) == [
        "no-such-package 1: states no licence",
        "d 1: LGPL-3.0-only",
    ]
