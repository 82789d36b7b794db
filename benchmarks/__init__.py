"""Programs that measure the package, one folder for each question (README.md)."""
