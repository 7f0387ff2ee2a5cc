"""The round, and what a method may use: types, local training, randomness, the wire."""
