from .checker import AnswerChecker as AnswerChecker
from .extraction import AnswerStyle as AnswerStyle
from .extraction import extract_answer as extract_answer
from .grading import Grade as Grade
from .grading import Grader as Grader
from .grouping import group_equal as group_equal
from .quantities import MAX_CHARS as MAX_CHARS
