"""What runs inside the box, with the standard library alone: the directory is mounted there as it is."""
