"""Published reward models: of each family its input, its read-out positions, and its sources.

Heads are read from the checkpoint's tensors; code that comes with a checkpoint is not run.
"""
