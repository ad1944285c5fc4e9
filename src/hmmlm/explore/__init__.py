"""Seeing what a model is and how it came to be."""
