from .segmenters import BlankLine as BlankLine
from .segmenters import Line as Line
from .segmenters import Marker as Marker
from .segmenters import Sentence as Sentence
from .segmenters import join_steps as join_steps
from .segmenters import segment_trace as segment_trace
from .segmenters import segmenter as segmenter
from .spans import token_positions as token_positions
