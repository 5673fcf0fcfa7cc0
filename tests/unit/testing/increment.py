"""A small kernel that keeps the contract, or breaks one law or promise on purpose."""

from dataclasses import dataclass, field

import numpy as np
from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import Countdown, CountdownParams, descriptor_signature
from streamgen.itensor import ITensor

__all__ = ["HiddenParams", "IncrementParams", "case"]


@dataclass(frozen=True, kw_only=True)
class IncrementParams:
    """o = i + by for `rows` rows of 8 elements, with 4 elements in a token. fault: the law to break."""

    fault: str = ""

    @property
    def drops(self):
        return self.fault == "drops"

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
        if bounds["by"] < 0 and self.fault != "accepts":
            raise ValueError(f"by is {bounds['by']}; 0 to 15 are allowed")
        return {"by": bounds["by"], "tokens": 2 * bounds["rows"]}

    def golden(self, bounds, inputs):
        if self.fault == "golden touches":
            inputs["i"][0] = 0
        output = inputs["i"] + np.int8(bounds["by"])
        if self.fault == "golden port":
            return {"y": output}
        if self.fault == "slow":
            for _ in range(6):
                output = (output + np.int8(bounds["by"])) ^ (inputs["i"] & 0x55)
        if self.fault == "golden":
            output[-1, 5] ^= 1
        return {"o": output}

    def cost(self, bounds):
        tokens = 2 * bounds["rows"]
        lut = {"lut": 250, "other lut": 70 + bounds["rows"]}.get(self.fault, 70)
        return Cost(
            resources=Resources(lut=lut, ff=47),
            ii=2.0 if self.fault == "ii" else 1.0,
            latency=3 if self.fault == "latency" else 1,
            cycles=tokens + (3 if self.fault == "cycles" else 2),
        )

    def curves(self, bounds):
        rows = bounds["rows"]
        taken = Curve.nest(1, (rows, 2), (2, 1))
        offered = Curve.nest(2, (rows, 3 if self.fault == "curve" else 2), (2, 1))
        if self.fault == "curve falls":
            offered = Curve.nest(2, (rows, 1), (2, 1))
        if self.fault == "curve short":
            offered = Curve.nest(2, (rows, 2))
        return {"i": taken} if self.fault == "curve missing" else {"i": taken, "o": offered}

    def build(self):
        return Increment(self)


@dataclass(frozen=True, kw_only=True)
class HiddenParams(IncrementParams):
    """Params with a choice that is not part of the name of the module."""

    lanes: int = field(default=4, repr=False)


class Increment(wiring.Component):
    def __init__(self, params):
        self._params = params
        ports = {
            "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
            "i": In(stream.Signature(32)),
            "o": Out(stream.Signature(24 if params.fault == "narrow" else 32)),
        }
        if params.fault == "pin":
            ports["irq"] = Out(1)
        if params.fault == "port":
            ports["i_more"] = In(stream.Signature(8))
        super().__init__(ports)

    def elaborate(self, platform):
        m = Module()
        fault = self._params.fault
        m.submodules.countdown = countdown = Countdown(CountdownParams(bits=8))
        by = Signal(4)
        rest = Signal(4)
        descriptor = self.i_descriptor
        wait = rest != 0
        held = Signal()  # a token is in the output register
        m.d.comb += [
            countdown.i_count.valid.eq(descriptor.valid & ~wait),
            countdown.i_count.payload.eq(descriptor.payload.tokens),
            descriptor.ready.eq(countdown.i_count.ready & ~wait),
            self.i.ready.eq(countdown.active & (~held | self.o.ready)),
            countdown.step.eq(self.i.valid & self.i.ready),
        ]
        if fault == "gap":
            with m.If(wait):
                m.d.sync += rest.eq(rest - 1)
            with m.Elif(countdown.step & countdown.last):
                m.d.sync += rest.eq(5)
                m.d.comb += [countdown.i_count.valid.eq(0), descriptor.ready.eq(0)]
        with m.If(countdown.taken):
            m.d.sync += by.eq(descriptor.payload.by | (by if fault == "leak" else 0))
        m.d.comb += self.o.valid.eq(held & (self.o.ready if fault == "waits" else 1))
        odd, parity = Signal(), Signal(reset_less=True)
        with m.If(countdown.step):
            m.d.sync += [odd.eq(~odd), parity.eq(~parity)]
        elements = [self._element(self.i.payload.word_select(k, 8), by, k) for k in range(4)]
        if fault == "reset":
            elements[0] = elements[0] ^ (odd ^ parity)
        with m.If(~held | self.o.ready):
            m.d.sync += [held.eq(countdown.step), self.o.payload.eq(Cat(e[:8] for e in elements))]
        if fault == "withdraws":
            with m.Elif(by == 15):
                m.d.sync += held.eq(0)
        if fault == "changes":
            with m.Elif(by == 15):
                m.d.sync += self.o.payload.eq(self.o.payload + 1)
        return m

    def _element(self, element, by, k):
        fault = self._params.fault
        changed = (element + by)[:8]
        if fault == "value" and k == 2:
            changed = (element + by + (element == 77))[:8]
        if fault == "slow":
            for _ in range(6):
                changed = (changed + by)[:8] ^ (element & 0x55)
        return changed


def case(by, rows, seed=0):
    values = np.random.default_rng(seed).integers(-100, 100, (rows, 8)).astype(np.int8)
    return {"by": by, "rows": rows}, {"i": values}
