"""Kinds of reward models and of scorers made from other scorers, one file each."""
