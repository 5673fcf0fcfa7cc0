"""An operation for streamgen: a torch operator, what it is in hardware, and the kernel that computes it."""
