"""``surefoot search``: one command per method."""
