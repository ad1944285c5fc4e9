"""The best of each row: `kernel` finds them without sorting."""
