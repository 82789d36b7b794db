"""The shop: a desk at which an agent refunds, cancels and denies, with a policy, loopholes and tools that
fail.

The truth of every step is computed from the state; a scripted agent has known rates of error.
"""

from .agent import ShopAgent as ShopAgent
from .menu import MENU as MENU
from .menu import ShopMenu as ShopMenu
from .menu import judge_menu as judge_menu
from .menu import menu_run as menu_run
from .tasks import FAMILIES as FAMILIES
from .tasks import generate_tasks as generate_tasks
from .truth import ShopVerifier as ShopVerifier
from .truth import StepTruth as StepTruth
from .truth import judge_steps as judge_steps
from .world import Shop as Shop
