"""``surefoot search``: one command for each method."""
