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
"""

from streamgen.platform.boards import Board

E_MULTIPLY = 7 * (0.2 + 0.1) * 1e-12
E_HBM = 3.9e-12
IDLE = 0.2
LOGIC = 0.5


def energy(
    board: Board, clock_mhz: float, *, cycles: float, products: float, bits: float, luts: float
) -> float:
    """Energy of a run in joules. cycles: cycles of the run. products: number of multiplications. bits: bits
    that are read from or written to memory. luts: LUTs of the design."""
    of_lut = LOGIC * (1 - IDLE) * board.watts / board.resources.lut / (board.clock_mhz * 1e6)
    idle = IDLE * board.watts * cycles / (clock_mhz * 1e6)
    return idle + products * E_MULTIPLY + bits * E_HBM + luts * of_lut * cycles
