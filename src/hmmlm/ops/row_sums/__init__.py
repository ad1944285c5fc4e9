"""Rows summed by a key, in the same order every time; `kernel` makes it with Triton."""
