"""Tables for terminals: no wider than the terminal, numbers to the right, nothing cut off."""

import io
import shutil
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110  # where there is no terminal


def width_of(width: int | None = None) -> int:
    """Characters of a line: those asked for, or those of the terminal, or 110."""
    return width or shutil.get_terminal_size((WIDTH, 24)).columns


def table(*titles: str, texts: int = 1, lines: bool = True) -> Table:
    """A table without rows. texts: of so many columns, the first ones, the text begins at the left and goes
    on in the next line where it is too long; numbers end at the right and stay whole,
    in several lines where there are several in a cell. lines: one stands below the titles."""
    empty = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False)
    for number, title in enumerate(titles):
        if number < texts:
            empty.add_column(title, overflow="fold")
        else:
            empty.add_column(title, justify="right", overflow="fold")
    return empty


def rendered(parts: Iterable[str | Table], width: int | None = None) -> str:
    """Lines of at most `width` characters (`width_of`), without spaces at their ends."""
    console = Console(file=io.StringIO(), width=width_of(width))
    for part in parts:
        if isinstance(part, Table):
            _keep_numbers(part)
        console.print(part, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _keep_numbers(made: Table) -> None:
    """No column of numbers becomes narrower than the longest word in it."""
    for column in made.columns:
        if column.justify == "right":
            column.min_width = max(len(word) for cell in column.cells for word in f"{cell} -".split())
