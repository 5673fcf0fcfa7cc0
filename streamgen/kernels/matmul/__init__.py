"""Quantised activations times weights: groups of codes, the columns that multiply them, results in order."""
