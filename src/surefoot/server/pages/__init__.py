"""The web pages: people label steps, and administrators and viewers look at traces, runs and requests."""
