"""Square root of a value of a format, correctly rounded, by non-restoring digit recurrence.

    q_0 = 0, r_0 = 0
    r_(i+1) = 4·r_i + d_i - (4·q_i + 1)   or, r_i being negative,   4·r_i + d_i + (4·q_i + 3)
    q_(i+1) = 2·q_i + (r_(i+1) >= 0)

d_i are the digits in base 4 of the significand, doubled when the exponent is odd. Each step is one addition
of precision + 3 bits; one step a stage pair. precision + 1 bits of the root are a correctly rounded one: the
last is the half that rounds up, since no root ends exactly there (its square would have more bits than
any significand). Source: Ercegovac and Lang, Digital Arithmetic, chapter 6.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, operand, resize_signed
from streamgen.gateware.arith.unit import UnitParams

_STEPS = 2  # in a stage


@dataclass(frozen=True, kw_only=True)
class SquareRootParams(UnitParams):
    """Square root in `form`: -0 gives -0, negative values give NaN."""

    form: Float

    @property
    def latency(self) -> int:
        return 3 + -(-(self.form.precision + 1) // _STEPS)

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, fitted to formats of 8 to 32 bits."""
        p = self.form.precision
        return Resources(lut=(6 * p + 66) * p // 10 + 18, ff=(9 * p + 126) * p // 20 + 2)

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the square roots of values of the format."""
        with np.errstate(invalid="ignore"):
            return self.form.round(np.sqrt(np.asarray(i, np.float64)))

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        count = form.precision + 1  # bits of the root

        # 2^(E - bias)·x = (2^((E' - bias) / 2))²·x', 1 <= x' < 4, E' the one of E, E - 1 that leaves an even
        # difference; the bias is odd.
        x = operand(form, i)
        odd = ~x.exponent[0]
        significand = Mux(odd, x.significand << 1, x.significand)[: form.precision + 1]
        s = pipe.stage(
            digits=Cat(Const(0, 2 * count - form.precision - 1), significand),
            root=Const(0, 0),
            remainder=Const(0, 1),
            sign=x.sign,
            exponent=resize_signed(((x.exponent + form.bias)[1:]), form.exponent_bits + 2),
            zero=x.zero,
            infinite=x.infinite,
            nan=x.nan | (x.sign & ~x.zero),
        )
        for first in range(0, count, _STEPS):
            root, remainder, digits = s.root, s.remainder, s.digits
            for _ in range(first, min(first + _STEPS, count)):
                remainder = pipe.wire(_step(remainder, digits[-2:], root))
                root = Cat(~remainder[-1], root)
                digits = digits[:-2]
            s.root, s.remainder, s.digits = root, remainder, digits
            s = pipe.stage(**vars(s))
        return round_stages(
            pipe,
            form,
            normal=Cat(Const(1, 1), s.root),
            exponent=s.exponent,
            **flags(s),
        )


def _step(remainder: Value, digit: Value, root: Value) -> Value:
    """The remainder, of two bits more than the root that follows, signed."""
    width = len(root) + 3
    negative = remainder[-1] if len(root) else Const(0, 1)
    a = Cat(digit, resize_signed(remainder, width))[:width]
    # 4·root + 3, or -(4·root + 1) = ~(4·root): that is, 4·~root + 3
    b = Cat(Const(3, 2), Cat(root, Const(0, 1)) ^ (~negative).replicate(len(root) + 1))
    return (a + b)[:width].as_signed()
