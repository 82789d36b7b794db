"""Worlds in which the truth of every step is known, for benchmarks; README.md describes each."""
