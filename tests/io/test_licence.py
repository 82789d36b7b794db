"""The licence that the metadata of a README states, by the client of the hub."""

from __future__ import annotations

import pytest
from huggingface_hub import metadata_load

from surefoot.io.lineage import NOT_STATED, licence_of


@pytest.mark.parametrize(
    "text",
    [
        "---\nlicense: mit\n---\n# A model\n",
        "---\nlanguage: en\nlicense: 'apache-2.0' # of the code\n---\n",
        "---\r\nlicense: mit\r\n---\r\n",
        "---\nlicense:\n- mit\n- bsd-3-clause\ntags:\n- a\n---\n",
        "---\nlicense: [mit, bsd-3-clause]\n---",
        "---\nlicense:\ntags:\n- license: gpl\n---\n",
        "---\ntags: [a]\n---\nlicense: mit\n",
        "# A model\nlicense: mit\n",
        "",
    ],
)
def test_the_licence_of_a_readme(text, tmp_path):
    (tmp_path / "README.md").write_bytes(text.encode())
    stated = (metadata_load(tmp_path / "README.md") or {}).get("license") or NOT_STATED
    assert licence_of(tmp_path) == (", ".join(stated) if isinstance(stated, list) else stated)
