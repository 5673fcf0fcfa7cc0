"""Tables for terminals: no wider than the terminal, with numbers aligned right and nothing cut off."""

import io
import shutil
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110  # where there is no terminal


def width_of(width: int | None = None) -> int:
    """Characters of a line: `width` if given, else the width of the terminal, else 110."""
    return width or shutil.get_terminal_size((WIDTH, 24)).columns


def table(*titles: str, texts: int = 1, lines: bool = True) -> Table:
    """A table without rows. texts: number of columns of text, which come first. Text is aligned left and
    wrapped. All other columns hold numbers, which are aligned right and never split; several numbers in a
    cell may take several lines. lines: draw a line below the titles."""
    empty = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False)
    for number, title in enumerate(titles):
        if number < texts:
            empty.add_column(title, overflow="fold")
        else:
            empty.add_column(title, justify="right", overflow="fold")
    return empty


def rendered(parts: Iterable[str | Table], width: int | None = None) -> str:
    """Texts and tables as lines of at most `width` characters (`width_of`), without trailing spaces."""
    console = Console(file=io.StringIO(), width=width_of(width))
    for part in parts:
        if isinstance(part, Table):
            _keep_numbers(part)
        console.print(part, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _keep_numbers(table: Table) -> None:
    """Make every column of numbers at least as wide as its longest word."""
    for column in table.columns:
        if column.justify == "right":
            column.min_width = max(len(word) for cell in column.cells for word in f"{cell} -".split())
