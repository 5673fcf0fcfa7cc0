"""The boards given.

Figures of SLRs are what the shell leaves, as published for the platforms (AMD's UG1120, LUTs and registers in
thousands); none has been read off a card. All parts have 23,040 wires (SLLs) between neighbouring SLRs, as
reports of Vivado for the first two say. The memory rate of all but the U50 is the sustained sequential one,
425 GB/s over all channels, measured on a U280 (Shuhai, FCCM 2020), not the 14.375 GB/s a channel of the data
sheets: all carry the same HBM2, 8 GB of it on a U280 and 16 GB on a U55C. The release of the tools is the one
that a platform's name says it was made with.

The U50 has no shell here, so it is for estimates. Its part has 870,720 LUTs, 1,743,360 registers, 1,344 block
RAMs, 640 ultra RAMs and 5,952 DSPs, half of each in an SLR. No count of what its shells leave is used here.
The figures assume that a shell takes as much as that of the U55C (172,680 LUTs, 342,360 registers, 240 block
RAMs, 720 DSPs), half of it from each SLR. The data sheet of the card (DS965) says 75 W and 316 GB/s for its
8 GB in 32 pseudo-channels. The sustained rate is assumed to be the same share of this as on a U280.

The VU47P is the card of AWS F2. It has no shell here, so it is for estimates. The sums of its part are those
of AMD's product tables (DS890): 1,303,680 LUTs, 2,607,360 registers, 2,016 block RAMs, 960 ultra RAMs, 9,024
DSPs, a third of each in an SLR, and 16 GB of the same HBM2 in 32 pseudo-channels. No published count of what
AWS's Small Shell leaves is known to us. The floor plan of AWS's development kit leaves 25 of the 32 clock
regions of SLR0, 23 of SLR1 and all of SLR2, beside parts of regions, which are not counted here; the figures
are these shares of the part. 250 MHz is the main clock that the shell gives. 150 W are those of the U55C: no
figure for this card is known to us.
"""

from collections.abc import Mapping
from typing import Any

from streamgen.contract.cost import Resources
from streamgen.gateware.fabric import ULTRASCALE_PLUS
from streamgen.platform.boards.board import Board, Hbm, Shell, Slr
from streamgen.platform.boards.stored import restored

_WIRES = 23_040
_WIRES_FILL = 0.8  # our choice, see decision 211: no figure of the vendor's is known to us
_CHANNEL_RATE, _DATA_SHEET = 13_300_000_000, 460_000_000_000


def _hbm(channel_bytes: int, data_sheet: int = _DATA_SHEET) -> Hbm:
    """The memory of these cards, of which a design gets the same share of the rate in the data sheet."""
    return Hbm(
        channels=32,
        channel_bytes=channel_bytes,
        channel_rate=_CHANNEL_RATE * data_sheet // _DATA_SHEET,
        latency=100,
        slr="SLR0",
        data_sheet=float(data_sheet),
    )


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
    hbm=_hbm(512 << 20),
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
    hbm=_hbm(256 << 20),
    clock_mhz=300.0,
    watts=225.0,
    fill=0.75,
    wires_fill=_WIRES_FILL,
)

U50 = Board(
    name="u50",
    part="xcu50-fsvh2104-2-e",
    shell=None,
    fabric=ULTRASCALE_PLUS,
    slrs=(
        Slr(name="SLR0", resources=Resources(lut=349_000, ff=700_000, bram=552, uram=320, dsp=2616)),
        Slr(name="SLR1", resources=Resources(lut=349_000, ff=700_000, bram=552, uram=320, dsp=2616)),
    ),
    wires=_WIRES,
    hbm=_hbm(256 << 20, 316_000_000_000),
    clock_mhz=300.0,
    watts=75.0,
    fill=0.75,
    wires_fill=_WIRES_FILL,
)

VU47P = Board(
    name="vu47p",
    part="xcvu47p-fsvh2892-2-e",
    shell=None,
    fabric=ULTRASCALE_PLUS,
    slrs=(
        Slr(name="SLR0", resources=Resources(lut=339_000, ff=679_000, bram=525, uram=250, dsp=2350)),
        Slr(name="SLR1", resources=Resources(lut=312_000, ff=624_000, bram=483, uram=230, dsp=2162)),
        Slr(name="SLR2", resources=Resources(lut=434_000, ff=869_000, bram=672, uram=320, dsp=3008)),
    ),
    wires=_WIRES,
    hbm=_hbm(512 << 20),
    clock_mhz=250.0,
    watts=150.0,
    fill=0.75,
    wires_fill=_WIRES_FILL,
)

BOARDS = {board.name: board for board in (U55C, U280, U50, VU47P)}
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
