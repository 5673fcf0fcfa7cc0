"""Boards as values: what a design may use, how fast its memory is, what its logic is made of.

`board_of("u280")` finds one by name; whoever has another card makes a `Board`.
"""

from streamgen.gateware.fabric import ULTRASCALE_PLUS, Fabric
from streamgen.platform.boards.board import Board, Channel, Hbm, Shell, Slr
from streamgen.platform.boards.cards import BOARDS, DEFAULT_BOARD, board_of, shell_of

__all__ = [
    "BOARDS",
    "DEFAULT_BOARD",
    "ULTRASCALE_PLUS",
    "Board",
    "Channel",
    "Fabric",
    "Hbm",
    "Shell",
    "Slr",
    "board_of",
    "shell_of",
]
