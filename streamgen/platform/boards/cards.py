"""The boards given.

Figures of SLRs are what the shell leaves, as published for the platforms (AMD's UG1120, LUTs and registers in
thousands); none has been read off a card. Both parts have 23,040 wires (SLLs) between neighbouring SLRs, as
reports of Vivado for them say. The memory rate of both is the sustained sequential one, 425 GB/s
over all channels, measured on a U280 (Shuhai, FCCM 2020), not the 14.375 GB/s a channel of the data sheets:
both carry the same HBM2, 8 GB of it on a U280 and 16 GB on a U55C. The release of the tools is the one that a
platform's name says it was made with.
"""

from collections.abc import Mapping
from typing import Any

from streamgen.contract.cost import Resources
from streamgen.gateware.fabric import ULTRASCALE_PLUS
from streamgen.platform.boards.board import Board, Hbm, Shell, Slr
from streamgen.platform.boards.stored import restored

__all__ = ["BOARDS", "DEFAULT_BOARD", "U55C", "U280", "board_of", "shell_of"]

_WIRES = 23_040
_WIRES_FILL = 0.8  # our choice, see decision 211: no figure of the vendor's is known to us
_CHANNEL_RATE = 13_300_000_000

U55C = Board(
    name="u55c",
    part="xcu55c-fsvh2892-2L-e",
    shell=Shell(platform="xilinx_u55c_gen3x16_xdma_3_202210_1", tools="2022.1"),
    fabric=ULTRASCALE_PLUS,
    slrs=(
        Slr(name="SLR0", resources=Resources(lut=386_000, ff=773_000, bram=600, uram=320, dsp=2664)),
        Slr(name="SLR1", resources=Resources(lut=364_000, ff=729_000, bram=576, uram=320, dsp=2784)),
        Slr(name="SLR2", resources=Resources(lut=381_000, ff=763_000, bram=600, uram=320, dsp=2856)),
    ),
    wires=_WIRES,
    hbm=Hbm(channels=32, channel_bytes=512 << 20, channel_rate=_CHANNEL_RATE, latency=100, slr="SLR0"),
    clock_mhz=300.0,
    watts=150.0,
    fill=0.75,
    wires_fill=_WIRES_FILL,
)

U280 = Board(
    name="u280",
    part="xcu280-fsvh2892-2L-e",
    shell=Shell(platform="xilinx_u280_gen3x16_xdma_1_202211_1", tools="2022.1"),
    fabric=ULTRASCALE_PLUS,
    slrs=(
        Slr(name="SLR0", resources=Resources(lut=369_000, ff=746_000, bram=507, uram=320, dsp=2733)),
        Slr(name="SLR1", resources=Resources(lut=333_000, ff=675_000, bram=468, uram=320, dsp=2877)),
        Slr(name="SLR2", resources=Resources(lut=367_000, ff=729_000, bram=512, uram=320, dsp=2880)),
    ),
    wires=_WIRES,
    hbm=Hbm(channels=32, channel_bytes=256 << 20, channel_rate=_CHANNEL_RATE, latency=100, slr="SLR0"),
    clock_mhz=300.0,
    watts=225.0,
    fill=0.75,
    wires_fill=_WIRES_FILL,
)

BOARDS = {board.name: board for board in (U55C, U280)}
DEFAULT_BOARD = U55C


def board_of(board: str | Board | Mapping[str, Any]) -> Board:
    """The board of this name, the board itself, or the one that a file has kept; ValueError for others."""
    if isinstance(board, Board):
        return board
    if isinstance(board, Mapping):
        return restored(board)
    if board not in BOARDS:
        raise ValueError(f"no board is called {board!r}; known are {', '.join(BOARDS)}")
    return BOARDS[board]


def shell_of(board: Board) -> Shell:
    """The shell that kernels for a board are linked to; ValueError for a board without one."""
    if board.shell is None:
        linked = ", ".join(name for name, known in BOARDS.items() if known.shell is not None)
        raise ValueError(
            f"board {board.name!r} has no shell to link kernels to, so no package can be made for it; boards "
            f"with a shell are {linked}"
        )
    return board.shell
