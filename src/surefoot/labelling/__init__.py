"""One file per way to label steps; each is a :class:`surefoot.protocols.Labeller`."""
