"""Element formats, and how weights are quantised."""
