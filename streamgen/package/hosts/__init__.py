"""Host programs, shipped in packages as they are: scripts that need streamgen, XRT and their folder."""
