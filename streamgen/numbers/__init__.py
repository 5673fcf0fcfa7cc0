"""Number formats of elements, and the quantisation of weights."""
