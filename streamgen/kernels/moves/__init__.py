"""What moves tiles and leaves them as they are: forks, selects, routes, parts of rows, tables."""
