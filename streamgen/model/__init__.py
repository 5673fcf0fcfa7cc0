"""A model as a graph of operations: where it comes from, and how numpy runs it."""
