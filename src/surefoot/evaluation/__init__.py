"""Measuring: intervals, step metrics, label noise, benchmarks, and the reports that show them."""
