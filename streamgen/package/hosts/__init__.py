"""Host programs, copied into packages unchanged: scripts that need streamgen, XRT and their folder."""
