"""Drive one arithmetic unit through amaranth's simulator, and round exactly, for the tests here."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from streamgen.gateware.arith import Float

# The ends of what a format may have: fewest and most bits of exponent and of fraction.
LIMITS = [Float(3, 2), Float(3, 23), Float(8, 2)]


def run_unit(
    params: Any, operands: Mapping[str, np.ndarray], stalls: float = 0.0, seed: int = 1
) -> np.ndarray:
    """int64 array: the results, the operands entering one after another in the enabled cycles.

    In a share of `stalls` of the cycles the unit is not enabled, its operands are others, and its
    result must not move.
    """
    unit = params.build()
    rng = np.random.default_rng(seed)
    lists = {name: [int(v) for v in column] for name, column in operands.items()}
    count = len(next(iter(lists.values())))
    results: list[int] = []

    async def drive(ctx: Any) -> None:
        taken = 0
        before = ctx.get(unit.o)
        while len(results) < count:
            enabled = stalls == 0 or rng.random() >= stalls
            at = taken if enabled and taken < count else int(rng.integers(count))
            ctx.set(unit.enable, enabled)
            for name, column in lists.items():
                ctx.set(getattr(unit, name), column[at])
            await ctx.tick()
            now = ctx.get(unit.o)
            if enabled:
                taken += 1
                if taken >= params.latency:
                    results.append(now)
            else:
                assert now == before
            before = now

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    return np.array(results)


def round_exactly(value: Fraction, form: Float) -> float:
    """The nearest value of the format, ties to even, by rational arithmetic; +0 for 0."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - form.fraction_bits)
    rounded = round(magnitude / unit) * unit
    if rounded >= Fraction(2) ** (form.bias + 1):
        result = float("inf")
    elif rounded < Fraction(2) ** (1 - form.bias):
        result = 0.0
    else:
        result = float(rounded)
    return -result if value < 0 else result


def assert_same_bits(form: Float, actual: np.ndarray, expected: np.ndarray, *operands: np.ndarray) -> None:
    """Fail at the first difference, naming the operands."""
    wrong = np.flatnonzero(actual != expected)
    if wrong.size:
        k = int(wrong[0])
        values = [operand[k] for operand in operands]
        raise AssertionError(
            f"{form}: {wrong.size} of {len(actual)} differ; first at {values}: "
            f"{int(actual[k]):#x} instead of {int(expected[k]):#x}"
        )


def special_bits(form: Float) -> np.ndarray:
    """Zeros, infinities, NaN of several patterns, subnormals, borders of the range, ones; both signs."""
    top = (1 << form.exponent_bits) - 1
    fraction = (1 << form.fraction_bits) - 1
    parts = [
        (0, 0),  # zero
        (0, 1),  # subnormals
        (0, fraction),
        (1, 0),  # the least normal numbers
        (1, 1),
        (1, fraction),
        (top - 1, 0),  # the greatest numbers
        (top - 1, fraction),
        (top, 0),  # infinity
        (top, 1),  # NaN
        (top, fraction),
        (form.bias, 0),  # 1 and its neighbours
        (form.bias, 1),
        (form.bias - 1, fraction),
    ]
    bits = np.array([exponent << form.fraction_bits | low for exponent, low in parts], np.int64)
    return np.concatenate([bits, bits | 1 << (form.bits - 1)])


def random_bits(form: Float, count: int, seed: int, spread: int | None = None) -> np.ndarray:
    """Patterns of all kinds; with `spread` their exponents lie that close to the one of 1."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << form.bits, count)
    if spread is not None:
        mask = ((1 << form.exponent_bits) - 1) << form.fraction_bits
        near = rng.integers(form.bias - spread, form.bias + spread + 1, count)
        bits = bits & ~mask | near << form.fraction_bits
    return bits


def pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every element of a with every element of b."""
    return np.repeat(a, len(b)), np.tile(b, len(a))


def ties_and_borders(form: Float) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose sums and products lie on and beside ties, cancel, overflow and underflow."""
    one = form.bias << form.fraction_bits
    minus = 1 << (form.bits - 1)
    steps = np.arange(1 << min(form.fraction_bits, 4))
    near_one = np.concatenate([one + steps, one - 1 - steps])
    half_unit = (
        (form.bias - form.precision << form.fraction_bits) + steps if form.bias > form.precision else near_one
    )
    greatest = (((1 << form.exponent_bits) - 1) << form.fraction_bits) - 1 - steps
    least = (1 << form.fraction_bits) + steps
    half = (form.bias - 1 << form.fraction_bits) + steps
    halves_of_range = ((form.bias >> 1) + 1 << form.fraction_bits) + steps
    sparse = one | 1 << np.arange(form.fraction_bits)
    groups = [
        (sparse, sparse),  # products with one bit below the kept ones: ties
        (near_one, half_unit),  # a tie in the lowest bit, and what is just beside it
        (near_one, half_unit | minus),
        (near_one, near_one | minus),  # cancellation down to the last bit
        (greatest, greatest),
        (greatest, near_one),
        (greatest, half_unit),
        (least, least | minus),
        (least, half),
        (least, near_one),
        (halves_of_range, halves_of_range),
    ]
    both = [pairs(a, b) for a, b in groups]
    return np.concatenate([a for a, _ in both]), np.concatenate([b for _, b in both])
