"""Label Studio's JSON: one task a trace, one paragraph a step, people's labels and models' predictions.

The format is that of Label Studio's import and of its ``JSON`` export (labelstud.io/guide/task_format); the
labelling interface that goes with it is ``LABELLING_CONFIG``.
"""

from __future__ import annotations

from surefoot.formats.label_studio.reading import read_label_studio
from surefoot.formats.label_studio.vocabulary import LABELLING_CONFIG
from surefoot.formats.label_studio.writing import write_label_studio

__all__ = ["LABELLING_CONFIG", "read_label_studio", "write_label_studio"]
