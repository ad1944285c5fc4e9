"""Steps and recursions over messages and tiles: each with its definition and its fast versions."""
