"""The energy of a token: a model to compare designs on one card, not a measurement.

    E = idle power * time + products * E_MULTIPLY + HBM bits * E_HBM + LUTs * E_LUT * cycles

    E_MULTIPLY   an 8-bit product and a 32-bit sum: 0.2 + 0.1 pJ in 45 nm (M. Horowitz, "Computing's energy
                 problem", ISSCC 2014, figure 1.1.9), times 7 for hard blocks of an FPGA beside an ASIC
                 (I. Kuon, J. Rose, "Measuring the gap between FPGAs and ASICs", IEEE TCAD 26(2), 2007:
                 dynamic power 14 times in logic, about half of that where hard blocks do the work)
    E_HBM        3.9 pJ a bit of HBM2 (M. O'Connor et al., "Fine-grained DRAM", MICRO 2017, table 3)
    E_LUT        a LUT that switches in one of eight cycles: the TDP of the card without the idle power,
                 divided by all its LUTs and cycles, and halved because logic is not the only consumer; so
                 a full card never exceeds its TDP
    idle power   a fifth of the card's TDP

The last two are assumptions. They are the same for all designs on a card, and express that LUTs cost energy
and that a slow design pays for its time.

No card has been measured, so `LEAST` and `MOST` bound what the figures may be:

    E_MULTIPLY   least: from 45 nm to the 16 nm of these cards, 0.36 of the capacitance at (0.85 V / 0.9 V)^2;
                 most: 14 times, as in logic
    E_HBM        least: the memory alone; most: as much again for its controllers (an assumption)
    E_LUT        a quarter to three quarters of the TDP in the place of a half (an assumption)
    idle power   6 to 30 % of the TDP (an assumption; a small design is published with 10 W on a
                 card of 150 W)

A design never takes more than the TDP. XtraMAC, on a card of 150 W, takes 85 W at 74 % of the bandwidth, as
published. Planned designs for this card have about 70 W, and 37 to 107 W as bounds.
"""

from dataclasses import dataclass

from streamgen.platform.boards import Board

_PRODUCT = (0.2 + 0.1) * 1e-12  # joules in an ASIC of 45 nm


@dataclass(frozen=True, kw_only=True)
class EnergyFigures:
    """multiply, hbm: joules of a product and of a bit of memory. idle: share of the card's TDP. logic: share
    of the rest of the TDP that all LUTs of the card take."""

    multiply: float
    hbm: float
    idle: float
    logic: float


LIKELY = EnergyFigures(multiply=7 * _PRODUCT, hbm=3.9e-12, idle=0.2, logic=0.5)
LEAST = EnergyFigures(
    multiply=7 * _PRODUCT * (16 / 45) * (0.85 / 0.9) ** 2, hbm=3.9e-12, idle=0.06, logic=0.25
)
MOST = EnergyFigures(multiply=14 * _PRODUCT, hbm=7.8e-12, idle=0.3, logic=0.75)


def energy(
    board: Board,
    clock_mhz: float,
    *,
    cycles: float,
    products: float,
    bits: float,
    luts: float,
    figures: EnergyFigures = LIKELY,
) -> float:
    """Energy of a run in joules. cycles: cycles of the run. products: number of multiplications. bits: bits
    that are read from or written to memory. luts: LUTs of the design."""
    of_lut = figures.logic * (1 - figures.idle) * board.watts / board.resources.lut / (board.clock_mhz * 1e6)
    seconds = cycles / (clock_mhz * 1e6)
    idle = figures.idle * board.watts * seconds
    return idle + products * figures.multiply + bits * figures.hbm + luts * of_lut * cycles
