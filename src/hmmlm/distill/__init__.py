"""What a neural model knows, handed to an HMM."""
