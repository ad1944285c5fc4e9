"""Forward and backward recursion of chains whose steps have few states each.

Between two steps stands a tile, and neighbours of the same two kinds share theirs: the tiles of a
stretch are made together, then the loop over time runs in machine code (`compiled`).
"""
