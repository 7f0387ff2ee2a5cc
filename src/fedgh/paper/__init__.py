"""The paper's studies: what is measured, and how it is read."""
