"""Paths traced back through forward messages: the best state before a state, or a drawn one."""
