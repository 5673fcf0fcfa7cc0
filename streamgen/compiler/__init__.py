"""From a graph of operations to an emitted design, pass by pass."""
