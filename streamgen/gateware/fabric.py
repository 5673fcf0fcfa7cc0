"""What the logic of a family of devices is made of.

Kernels are written for one family: two products share a DSP48E2, memories have the shapes of its blocks. What
choices need of it stands here, once; all boards given have the same.
"""

from dataclasses import dataclass
from typing import NamedTuple


class RamShape(NamedTuple):
    """Simple dual port: rows and columns, and the blocks that this takes."""

    rows: int
    columns: int
    blocks: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """lutram: shapes of LUTs, with their number. bram, uram: shapes of block and ultra RAM. bram_bits: of a
    block, parity included. brams_of_urams: so many block RAMs weigh as much as so many ultra RAMs, as boards
    have them. luts_of_a_dsp: those that weigh as much, as boards have them."""

    name: str
    lutram: tuple[RamShape, ...]
    bram: tuple[RamShape, ...]
    bram_bits: int
    uram: RamShape
    brams_of_urams: tuple[int, int]
    luts_of_a_dsp: float

    @property
    def uram_bits(self) -> int:
        """Bits of an ultra RAM."""
        return self.uram.rows * self.uram.columns


ULTRASCALE_PLUS = Fabric(
    name="ultrascale+",
    lutram=(RamShape(32, 14, 8), RamShape(64, 7, 8)),
    bram=(
        *(RamShape(512 << k, columns) for k, columns in enumerate((72, 36, 18, 9, 4, 2, 1))),
        *(RamShape(512 << k, columns, 0.5) for k, columns in enumerate((36, 18, 9, 4, 2, 1))),
    ),
    bram_bits=36 * 1024,
    uram=RamShape(4096, 72),
    brams_of_urams=(37, 20),
    luts_of_a_dsp=136,
)
