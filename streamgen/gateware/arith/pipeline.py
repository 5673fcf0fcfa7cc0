"""What the pipelined units are made of: stages under one clock enable, normalisation, rounding.

A unit describes its stages in order with one `Pipeline`: `s = pipe.stage(sign=…, sum=…)` registers the
values and hands back the registers by name, so that every value used after a stage has passed it.
Registers have no reset: what is in the pipe before the first operand is nobody's result, and chains of
plain delays become shift-register LUTs.

The stages of a unit suit any place. A kernel whose latency counts leaves out some registers (`kept`): those
between stages whose paths together stay within the limit of LUT levels, to which a test holds the kernel.
"""

from collections.abc import Set
from types import SimpleNamespace

from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.hdl import ValueLike

from streamgen.gateware.arith.format import Float


class Pipeline:
    """Stages of registers of `m` that move when `enable` is high; `depth` counts them. kept: the stages that
    have registers, of which the first is 1; None for all."""

    def __init__(self, m: Module, enable: Value, kept: Set[int] | None = None) -> None:
        self._m = m
        self.enable = enable
        self._registers: set[int] = set()
        self._kept, self._stages = kept, 0
        self.depth = 0

    def stage(self, **values: ValueLike) -> SimpleNamespace:
        """Register all values; the attributes of what is returned are the registers.

        Those that do nothing but delay another say that they are meant for shift-register LUTs.
        """
        self._stages += 1
        if self._kept is not None and self._stages not in self._kept:
            return SimpleNamespace(**{name: self.wire(value) for name, value in values.items()})
        self.depth += 1
        registers = SimpleNamespace()
        with self._m.If(self.enable):
            for name, value in values.items():
                value = Value.cast(value)
                delays = isinstance(value, Signal) and id(value) in self._registers
                attributes = {"shreg_extract": "yes"} if delays else {}
                register = Signal(
                    value.shape(), name=f"{name}_{self.depth}", reset_less=True, attrs=attributes
                )
                self._registers.add(id(register))
                self._m.d.sync += register.eq(value)
                setattr(registers, name, register)
        return registers

    def wire(self, value: ValueLike) -> Signal:
        """The value as a signal: for values used more than once, which are else computed at each use."""
        value = Value.cast(value)
        wire = Signal(value.shape(), name=f"wire_{self.depth}")
        self._m.d.comb += wire.eq(value)
        return wire


def registered(m: Module, value: Value, bits: int | None = None) -> Signal:
    """`value` one cycle later, without reset; `bits` when its signed range is known to be smaller."""
    shape = value.shape() if bits is None else signed(bits)
    register = Signal(shape, reset_less=True, name="register")
    m.d.sync += register.eq(value)
    return register


def delayed(m: Module, value: Value, cycles: int) -> Value:
    """`value` some cycles later: a shift register without reset, which FPGAs keep in LUTs."""
    for _ in range(cycles):
        value = registered(m, value)
    return value


def operand(form: Float, bits: Value) -> SimpleNamespace:
    """The parts of a value: sign, exponent (biased), fraction, significand and zero, infinite, nan."""
    fraction = bits[: form.fraction_bits]
    exponent = bits[form.fraction_bits : form.bits - 1]
    special = exponent.all()
    return SimpleNamespace(
        sign=bits[form.bits - 1],
        exponent=exponent,
        fraction=fraction,
        significand=Cat(fraction, Const(1, 1)),
        zero=exponent == 0,
        infinite=special & ~fraction.any(),
        nan=special & fraction.any(),
    )


def flags(stage: SimpleNamespace) -> dict[str, Value]:
    """The registers of a stage that hold sign, zero, infinite and nan of a value, for the next one."""
    return {name: getattr(stage, name) for name in ("sign", "zero", "infinite", "nan")}


def align(pipe: Pipeline, value: Value, distance: Value, far: Value) -> Value:
    """`value` shifted right by `distance`, all the bits shifted out collected in the lowest one."""
    width = len(value)
    shifted: Value = value
    lost: Value = Const(0, 1)
    for bit in reversed(range(len(distance))):
        amount = min(1 << bit, width)
        lost = pipe.wire(Mux(distance[bit], lost | shifted[:amount].any(), lost))
        shifted = pipe.wire(Mux(distance[bit], shifted >> amount, shifted)[:width])
    sticky = Mux(far, value.any(), lost | shifted[0])
    return Cat(sticky, Mux(far, 0, shifted[1:width]))


def normalise_step(pipe: Pipeline, value: Value, step: int) -> tuple[Value, Value]:
    """Shift `value` left by the greatest of 0, 1, 2, 3 times `step` that loses no one bit.

    Returns (shifted, digit), digit being the multiple. Steps …16, 4, 1 in turn, as many as the width
    asks for, bring the leading one to the top; the digits are the shift in base 4.
    """
    width = len(value)
    limit = min(3, (width - 1) // step)
    clear = [~value[width - n * step :].any() for n in range(1, limit + 1)] + [Const(0, 1)] * (3 - limit)
    digit = pipe.wire(Cat(clear[0] & ~clear[1] | clear[2], clear[1]))
    shifted = [value.shift_left(n * step)[:width] for n in range(limit + 1)]
    shifted += [shifted[-1]] * (3 - limit)
    high = Mux(digit[0], shifted[3], shifted[2])
    low = Mux(digit[0], shifted[1], shifted[0])
    return pipe.wire(Mux(digit[1], high, low)), digit


def round_up(kept_low: Value, rest: Value) -> Value:
    """To nearest, ties to even: whether `rest`, cut off below the bit `kept_low`, adds one to it."""
    below = rest[:-1].any() if len(rest) > 1 else Const(0, 1)
    return rest[-1] & (kept_low | below)


def pack(
    pipe: Pipeline,
    form: Float,
    *,
    sign: Value,
    exponent: Value,
    fraction: Value,
    up: Value,
    zero: Value,
    infinite: Value,
    nan: Value,
) -> Value:
    """Bits of ±1.fraction·2^(exponent - bias), rounded by adding `up`, within the limits of the format.

    `exponent` is signed and may be out of range: that is the one overflow and underflow test. `zero`,
    `infinite` and `nan` override it, the latter first.
    """
    rounded = pipe.wire((Cat(fraction, exponent).as_signed() + up)[: len(fraction) + len(exponent)])
    above = rounded[form.fraction_bits :].as_signed()
    greatest = (1 << form.exponent_bits) - 1
    biased = above[: form.exponent_bits]
    beyond = above[form.exponent_bits : -1]
    negative = above[-1]
    overflow = ~negative & (beyond.any() | (biased == greatest))
    underflow = negative | ~above.any()
    full = pipe.wire(nan | infinite | (overflow & ~zero))
    empty = pipe.wire((zero | underflow) & ~full)
    clear = full | empty
    return Cat(
        Mux(clear, 0, rounded[: form.fraction_bits - 1]),
        Mux(clear, nan, rounded[form.fraction_bits - 1]),
        Mux(full, greatest, Mux(empty, 0, biased)),
        sign & ~nan,
    )


def signed_width(low: int, high: int) -> int:
    """Bits of the narrowest signed number that holds low … high, low being negative."""
    return max(high.bit_length(), (-low - 1).bit_length()) + 1


def resize_signed(value: Value, width: int) -> Value:
    """The same number as a signed value of `width` bits, which must be able to hold it."""
    extension = value[-1] if value.shape().signed else Const(0, 1)
    return Cat(value, extension.replicate(max(0, width - len(value))))[:width].as_signed()
