"""``surefoot evaluate``: measure labels, scorers and searches."""
