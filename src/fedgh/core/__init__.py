"""The round, and what a method may use: types, training, randomness, the wire, checkpoints."""
