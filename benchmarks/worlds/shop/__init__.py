"""The shop: a desk at which an agent refunds, cancels and denies, with a policy, loopholes and tools that
fail.

The truth of every step is computed from the state; a scripted agent has known rates of error.
"""

from .agent import ShopAgent as ShopAgent
from .tasks import FAMILIES as FAMILIES
from .tasks import generate_tasks as generate_tasks
from .truth import ShopVerifier as ShopVerifier
from .truth import StepTruth as StepTruth
from .truth import judge_steps as judge_steps
from .world import Shop as Shop
