"""The passes from a graph of operations to an emitted design."""
