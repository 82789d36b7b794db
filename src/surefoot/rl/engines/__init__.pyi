from .rewards import StepRewards as StepRewards
from .trl import step_reward_function as step_reward_function
from .trl_trainer import StepGRPOTrainer as StepGRPOTrainer
from .verl import StepRewardManager as StepRewardManager
from .verl import dense_agent_loop as dense_agent_loop
from .verl import step_score_function as step_score_function
