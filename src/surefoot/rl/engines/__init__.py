"""Step rewards for engines that train elsewhere: TRL's GRPO trainer and verl."""
