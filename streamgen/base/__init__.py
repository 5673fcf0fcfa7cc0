"""What all other rooms use: errors, safe reading of files, folders written whole or not at all, progress,
tables."""
