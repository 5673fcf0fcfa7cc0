"""RMS and layer norms, of rows, of heads and of blocks."""
