"""FIFOs: their hardware (queue) and their depths (sizing)."""
