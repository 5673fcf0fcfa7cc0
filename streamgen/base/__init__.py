"""Below everything: errors, safe reading of files, folders that are written whole, progress, tables."""
