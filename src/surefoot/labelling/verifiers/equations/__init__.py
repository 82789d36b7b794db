"""Equations in steps, checked in the context of the problem and the earlier steps."""
