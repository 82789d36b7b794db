"""Rules that check steps, one file per rule."""
