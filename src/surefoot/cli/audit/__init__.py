"""``surefoot audit``: the failures that reward models are known for."""
