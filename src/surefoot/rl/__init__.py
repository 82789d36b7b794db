"""Reinforcement learning on step rewards: rollouts, credit (one file a rule), loss, loop, guards."""
