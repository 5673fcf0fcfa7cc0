"""One DSP48E2: a product with what the slice does before and after it, and nothing else.

    p = ((a << shift) + d) * b + (0 | cascade | p unless first)        all signed

It is one module whose text has the shape that vendor tools map to one slice (AMD UG901 and UG579): registers
at the inputs, pre-adder, product, an adder and its register, none with a reset. `cascade` is the p of a
neighbour, by wires of their own (PCOUT, PCIN). Yosys maps none of that but the product. So synthesis leaves
these modules out and counts a DSP for each; the laws of `DspParams` say what fits, and a test holds every use
to a model of the slice.

    registers = 1    A, D, B                         operands to p: 2 cycles
    registers = 2    A, D, then AD; B twice                         3 cycles
    registers = 2    A twice; B twice                without d      3 cycles

`cascade` is added in the cycle before p changes, `enable` is asked in it; `first` comes with the operands.

Speed. Without a register behind the multiplier and between pre-adder and multiplier a slice of speed grade -2
runs at 410 MHz (AMD DS923, FMAX_NOPIPELINEREG), above every clock here; so there is none, and p is a
cycle earlier.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import registered

FACTOR_BITS = 27  # of the larger factor, the sum of the pre-adder
B_BITS = 18
P_BITS = 48


@dataclass(frozen=True, kw_only=True)
class DspParams:
    """a_bits, b_bits, d_bits: of the operands, d_bits 0 without d. shift: of a. p_bits: of the result, which
    wraps around. registers: at each input, 1 or 2. cascade: p of a neighbour is added. accumulate: its own.

    Raises ValueError for what a slice has no room for.
    """

    a_bits: int
    b_bits: int
    p_bits: int
    d_bits: int = 0
    shift: int = 0
    registers: int = 1
    cascade: bool = False
    accumulate: bool = False

    def __post_init__(self) -> None:
        for name, least in (("a_bits", 1), ("b_bits", 1), ("p_bits", 1), ("d_bits", 0), ("shift", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of a DSP must be at least {least}, not {getattr(self, name)}")
        for name, bits, most in (
            ("sum of the pre-adder" if self.d_bits else "factor a", self.factor_bits, FACTOR_BITS),
            ("factor b", self.b_bits, B_BITS),
            ("result", self.p_bits, P_BITS),
        ):
            if bits > most:
                raise ValueError(f"the {name} of a DSP has {bits} bits; at most {most} are there")
        if self.registers not in (1, 2):
            raise ValueError(f"registers of a DSP must be 1 or 2, not {self.registers}")
        if self.accumulate and (self.cascade or self.registers == 2):
            raise ValueError("a DSP that accumulates has one register at its inputs and no cascade")

    @property
    def factor_bits(self) -> int:
        """Width of (a << shift) + d."""
        wide = self.a_bits + self.shift
        return max(wide, self.d_bits) + 1 if self.d_bits else wide

    @property
    def latency(self) -> int:
        """Cycles from the operands to p."""
        return self.registers + 1

    @property
    def resources(self) -> Resources:
        """All registers are those of the slice."""
        return Resources(lut=0, ff=0, dsp=1)

    def build(self) -> "Dsp":
        return Dsp(self)


class Dsp(wiring.Component):
    """a, b[, d][, cascade][, first, enable] -> p."""

    def __init__(self, params: DspParams) -> None:
        self._params = p = params
        ports: dict[str, Any] = {"a": In(signed(p.a_bits)), "b": In(signed(p.b_bits))}
        if p.d_bits:
            ports["d"] = In(signed(p.d_bits))
        if p.cascade:
            ports["cascade"] = In(signed(p.p_bits))
        if p.accumulate:
            ports |= {"first": In(1), "enable": In(1)}
        super().__init__({**ports, "p": Out(signed(p.p_bits))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        a: Value = registered(m, self.a).shift_left(p.shift)
        b = registered(m, self.b)
        if p.d_bits:
            a = a + registered(m, self.d)
        if p.registers == 2:
            a, b = registered(m, a), registered(m, b)
        result: Value = a * b
        total = Signal(signed(p.p_bits), reset_less=True, attrs={"use_dsp": "yes"})
        m.d.comb += self.p.eq(total)
        if p.cascade:
            result = result + self.cascade
        if p.accumulate:
            kept = Mux(registered(m, self.first), 0, total)
            with m.If(self.enable):
                m.d.sync += total.eq(result + kept)
        else:
            m.d.sync += total.eq(result)
        return m
