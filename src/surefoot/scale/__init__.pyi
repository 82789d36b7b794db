from .engines import Engine as Engine
from .engines import LocalPool as LocalPool
from .jobs import Assignment as Assignment
from .jobs import FunctionJob as FunctionJob
from .jobs import Job as Job
from .jobs import Opened as Opened
from .jobs import PieceDone as PieceDone
from .pieces import Pieces as Pieces
