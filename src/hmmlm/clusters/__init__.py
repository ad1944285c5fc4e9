"""Clusters of words that neighbour alike: from them come the emission blocks of a model."""
