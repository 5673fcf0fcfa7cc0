"""A DSP48E2 as AMD's UG579 describes it, as far as products with a pre-adder and an adder go, in integers.

The model knows nothing of what uses it: attributes choose which registers are there, OPMODE and INMODE what
is added, every pin has the width of the slice, and arithmetic wraps around where the slice's does.
"""

from dataclasses import dataclass, field

__all__ = ["Attributes", "Pins", "Slice"]

A_PIN, A_BITS, B_BITS, D_BITS, P_BITS = 30, 27, 18, 27, 48
MULTIPLY = 0b0101  # X and Y: the two halves of the product
Z_ZERO, Z_CASCADE, Z_OWN = 0b000, 0b001, 0b010
USE_D = 0b00100  # of INMODE


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """areg, breg: 1 or 2; dreg, adreg: 0 or 1. The product has no register; OPMODE and P have one."""

    areg: int
    breg: int
    dreg: int = 0
    adreg: int = 0
    amultsel: str = "A"
    inmode: int = 0


@dataclass(frozen=True, kw_only=True)
class Pins:
    """What the slice reads in a cycle."""

    a: int
    b: int
    d: int = 0
    pcin: int = 0
    opmode: int = MULTIPLY
    cep: bool = True


@dataclass
class Slice:
    """`step` is a clock edge; `p` what is seen at the pins P and PCOUT."""

    attributes: Attributes
    p: int = 0
    _a: list[int] = field(default_factory=lambda: [0, 0])
    _b: list[int] = field(default_factory=lambda: [0, 0])
    _d: int = 0
    _ad: int = 0
    _opmode: int = MULTIPLY

    def step(self, pins: Pins) -> None:
        """What the registers take from the pins and from one another."""
        t = self.attributes
        a = wrapped(self._a[t.areg - 1], A_BITS)  # the product reads 27 of 30 bits
        b = self._b[t.breg - 1]
        summed = wrapped(a + (self._d if t.inmode & USE_D else 0), D_BITS)
        factor = (self._ad if t.adreg else summed) if t.amultsel == "AD" else a
        z = {Z_ZERO: 0, Z_CASCADE: pins.pcin, Z_OWN: self.p}[self._opmode >> 4]
        assert self._opmode & 0b1111 == MULTIPLY
        if pins.cep:
            self.p = wrapped(factor * b + z, P_BITS)
        self._ad, self._d, self._opmode = summed, wrapped(pins.d, D_BITS), pins.opmode
        self._a = [wrapped(pins.a, A_PIN), self._a[0]]
        self._b = [wrapped(pins.b, B_BITS), self._b[0]]


def wrapped(value: int, bits: int) -> int:
    """The signed number that so many bits hold."""
    half = 1 << bits - 1
    return (value + half) % (2 * half) - half
