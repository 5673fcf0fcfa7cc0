"""sim.kernel: a right kernel passes, each broken law and promise is caught and named."""

from dataclasses import dataclass

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim.bench import Stalls
from sim.kernel import check_golden, check_promises, descriptor_word, encode_port
from streamgen.contract import Field
from streamgen.cost import Cost, Curve, Resources
from streamgen.itensor import ITensor
from streamgen.stream import Countdown, CountdownParams, descriptor_signature


@dataclass(frozen=True, kw_only=True)
class IncrementParams:
    """o = i + by for `rows` rows of 4 elements, a row a token, 2 at a time; fault breaks one law."""

    fault: str = ""

    def _itensor(self, bounds):
        return ITensor((1, 4), "i8", (bounds["rows"], 2), (1, 4), ((0,), (1,)))

    def inputs(self, bounds):
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds):
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self):
        return Field("by", 4), Field("tokens", 8)

    def describe(self, bounds):
        if self.fault == "field missing":
            return {"by": 1}
        return {"by": bounds["by"], "tokens": 2 * bounds["rows"]}

    def golden(self, bounds, inputs):
        return {"o": inputs["i"] + np.int8(bounds["by"])}

    def cost(self, bounds):
        tokens = 2 * bounds["rows"]
        return Cost(
            resources=Resources(lut=50, ff=50),
            ii=2.0 if self.fault == "ii" else 1.0,
            latency=3 if self.fault == "latency" else 1,
            cycles=tokens + (3 if self.fault == "cycles" else 2),
        )

    def curves(self, bounds):
        rows = bounds["rows"]
        taken = Curve.nest(1, (rows, 2), (2, 1))
        offered = Curve.nest(2, (rows, 3 if self.fault == "curve" else 2), (2, 1))
        return {"i": taken} if self.fault == "curve missing" else {"i": taken, "o": offered}

    def build(self):
        return Increment(self)


class Increment(wiring.Component):
    def __init__(self, params):
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(32)),
                "o": Out(stream.Signature(32)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.countdown = countdown = Countdown(CountdownParams(bits=8))
        by = Signal(4)
        rest = Signal(4)
        descriptor = self.i_descriptor
        wait = rest != 0
        m.d.comb += [
            countdown.i_count.valid.eq(descriptor.valid & ~wait),
            countdown.i_count.payload.eq(descriptor.payload.tokens),
            descriptor.ready.eq(countdown.i_count.ready & ~wait),
            self.i.ready.eq(countdown.active & (~self.o.valid | self.o.ready)),
            countdown.step.eq(self.i.valid & self.i.ready),
        ]
        if self._params.fault == "gap":
            with m.If(wait):
                m.d.sync += rest.eq(rest - 1)
            with m.Elif(countdown.step & countdown.last):
                m.d.sync += rest.eq(5)
                m.d.comb += [countdown.i_count.valid.eq(0), descriptor.ready.eq(0)]
        with m.If(countdown.taken):
            m.d.sync += by.eq(descriptor.payload.by)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(countdown.step)
            for k in range(4):
                element = self.i.payload.word_select(k, 8)
                changed = element + by
                if self._params.fault == "value" and k == 2:
                    changed = element + by + (element == 77)
                m.d.sync += self.o.payload.word_select(k, 8).eq(changed)
        return m


def case(by, rows, seed=0):
    values = np.random.default_rng(seed).integers(-100, 100, (rows, 8)).astype(np.int8)
    return {"by": by, "rows": rows}, {"i": values}


def test_right_kernel_passes(stalls):
    check_golden(IncrementParams(), [case(3, 5), case(0, 1), case(15, 4)], stalls)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_right_promises_pass(rows):
    check_promises(IncrementParams(), *case(7, rows))


def test_descriptor_word():
    params = IncrementParams()
    assert descriptor_word(params, {"by": 5, "rows": 3}) == 5 | 6 << 4
    with pytest.raises(ValueError) as error:
        descriptor_word(params, {"by": 16, "rows": 3})
    assert str(error.value) == "descriptor field 'by' has 4 bits, its value is 16"
    with pytest.raises(ValueError) as error:
        descriptor_word(IncrementParams(fault="field missing"), {"by": 1, "rows": 3})
    assert str(error.value) == "describe gives ['by'], the fields are ['by', 'tokens']"


def test_encode_port():
    bounds, inputs = {"rows": 1}, np.array([[1, 2, 3, 4, -1, -2, -3, -4]], np.int8)
    assert encode_port(IncrementParams().inputs(bounds)["i"], inputs) == [0x04030201, 0xFCFDFEFF]


def test_wrong_value_is_shown_where_it_is():
    good, bad = case(3, 5), case(4, 4)
    good[1]["i"][:] = 1
    bad[1]["i"][:] = 1
    bad[1]["i"][3, 6] = 77
    with pytest.raises(AssertionError) as error:
        check_golden(IncrementParams(fault="value"), [good, bad], Stalls(seed=8, sources=0.2))
    assert str(error.value).splitlines() == [
        "IncrementParams(fault='value'), case 1 {'by': 4, 'rows': 4}: 1 of 8 tokens of 'o' differ "
        "(Stalls(seed=8, sources=0.2, sinks=0.0))",
        "  first is token 7 at (3, 4)",
        "  golden 0x5510505 = [[5, 5, 81, 5]]",
        "  rtl    0x5520505 = [[5, 5, 82, 5]]",
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cycles", "cost.cycles is 11, measured 10"),
        ("latency", "cost.latency is 3, measured 1"),
        ("ii", "cost.ii is 2.0, measured 1.000"),
        (
            "curve",
            "o: token 2 moves in cycle 4, the curve says 5 (6 of 8 differ; "
            "measured [2, 3, 4, 5, 6, 7], promised [2, 3, 5, 6, 8, 9])",
        ),
        ("curve missing", "curves are given for ['i'], the ports are ['i', 'o']"),
        ("gap", "the next descriptor comes 6 cycles after the last input token, 4 are allowed"),
    ],
)
def test_broken_promise_is_named(fault, message):
    bounds, inputs = case(1, 4)
    with pytest.raises(AssertionError) as error:
        check_promises(IncrementParams(fault=fault), bounds, inputs)
    lines = str(error.value).splitlines()
    assert lines == [f"IncrementParams(fault='{fault}') with {bounds}:", f"  {message}"]
