"""Published reward models, one file per family: what it writes, where it is read, what it was built from.

Heads are read from the checkpoint's tensors; code that comes with a checkpoint is not run.
"""
