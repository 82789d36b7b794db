"""Labelled traces → targets → loss → loop: how reward models are trained."""
