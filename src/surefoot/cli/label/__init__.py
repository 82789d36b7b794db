"""``surefoot label``: ways to label steps."""
