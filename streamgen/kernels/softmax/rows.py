"""The common part of both forms of softmax: rows with their maximum, lanes of arithmetic, the sum of a row.

The forms are in `softmax` (normalised) and `attention_softmax` (integers and their sum). Positions that a row
does not attend to, padding included, and scores of -infinity give 0. A row without any other score gives
zeros. A row that attends to NaN or +infinity gives NaN everywhere, padding included; in integers it gives
zeros and the sum NaN. Sums are sums of integers, rounded once, so lanes cannot matter.

A token leaves the row buffer when there is room for it at its destination, so nothing in between stalls.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.arith import F24, IntToFloatParams
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.softmax.masked_rows import MaskedRowsParams
from streamgen.kernels.softmax.terms import ExponentialParams, ShareParams, TermSumParams


@dataclass(frozen=True, kw_only=True)
class SoftmaxRowsParams(ABC):
    """lanes: elements taken per cycle. max_length: longest row, in elements.

    Bounds: rows, length; where there are masks start, causal, position, window, rows_per_position,
    rows_per_head (`masked_rows`).
    """

    lanes: int
    max_length: int

    def __post_init__(self) -> None:
        self.rows.__post_init__()

    @property
    def rows(self) -> MaskedRowsParams:
        """Masks, maxima and the row buffer."""
        return MaskedRowsParams(lanes=self.lanes, max_length=self.max_length)

    @property
    @abstractmethod
    def lane(self) -> ShareParams | ExponentialParams:
        """The arithmetic of a lane."""

    @property
    def sums(self) -> TermSumParams:
        """The sum of a row."""
        return TermSumParams(
            lanes=self.lanes, bits=self.lane.sum_bits, count=self.rows.max_tokens * self.lanes
        )

    @property
    def convert(self) -> IntToFloatParams:
        """The conversion of a sum to f24."""
        return IntToFloatParams(width=self.sums.sum_bits + 1, form=F24)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self.rows.itensor(bounds)}

    @abstractmethod
    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        """The itensors of the results."""

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.rows.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return self.rows.describe(bounds)

    @abstractmethod
    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """A token a cycle on every port that has as many as the input."""

    @abstractmethod
    def resources(self) -> Resources:
        """Fitted to synthesis."""

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        first = min(int(curves[port].cycles()[0]) for port in self.outputs(bounds))
        last = max(int(curves[port].cycles()[-1]) for port in self.outputs(bounds))
        start = int(curves["i"].cycles()[0])
        return Cost(resources=self.resources(), ii=1.0, latency=first - start, cycles=last + 1)

    def _terms_begin(self, bounds: Bounds) -> int:
        """The cycle in which the lanes' result for the first token is there; the input begins in cycle 3."""
        return 2 + self.rows.tokens(bounds) + self.rows.latency + self.lane.latency


def softmax_ports(params: SoftmaxRowsParams) -> dict[str, Any]:
    """The members of the component's signature."""
    bounds = {"rows": 1, "length": params.max_length}
    return {
        "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
        **{port: In(signature(itensor)) for port, itensor in params.inputs(bounds).items()},
        **{port: Out(signature(itensor)) for port, itensor in params.outputs(bounds).items()},
    }


def has_room(m: Module, came: Value, went: Value, limit: int) -> Signal:
    """Whether fewer than `limit` are in flight; known a cycle late, so the last place stays free."""
    under_way, room = Signal(range(limit + 1)), Signal(init=1)
    m.d.sync += [under_way.eq(under_way + came - went), room.eq(under_way < limit - 1)]
    return room


def add_lanes(
    m: Module, component: Any, params: SoftmaxRowsParams
) -> tuple[Any, list[Any], Value, Value, Value]:
    """The rows and the lanes after them; returns the result of the lanes with: valid, last, row is NaN."""
    m.submodules.rows = rows = params.rows.build()
    wiring.connect(m, wiring.flipped(component.i_descriptor), rows.i_descriptor)
    wiring.connect(m, wiring.flipped(component.i), rows.i)
    lanes = []
    for index in range(params.lanes):
        lane = Shared(params.lane)
        m.submodules[f"lane_{index}"] = lane
        m.d.comb += [lane.x.eq(rows.o_elements[index]), lane.negated.eq(rows.o_negated)]
        lanes.append(lane)
    valid = Signal(params.lane.latency)
    last, nan = (Signal(params.lane.latency, reset_less=True) for _ in range(2))
    top = F24.bits - 1
    is_nan = rows.o_negated[F24.fraction_bits - 1 : top].all()
    m.d.sync += [
        valid.eq(Cat(rows.o_valid, valid)),
        last.eq(Cat(rows.o_last, last)),
        nan.eq(Cat(is_nan, nan)),
    ]
    return rows, lanes, valid[-1], last[-1], nan[-1]


def add_sum(
    m: Module, params: SoftmaxRowsParams, numbers: list[Value], valid: Value, last: Value, nan: Value
) -> tuple[Value, Value, Value]:
    """The sum of a row in f24: (valid, bits, the row is NaN)."""
    m.submodules.sums = sums = params.sums.build()
    m.submodules.convert = convert = params.convert.build()
    m.d.comb += [
        sums.valid.eq(valid),
        sums.last.eq(last),
        sums.numbers.eq(Cat(numbers)),
        convert.enable.eq(1),
        convert.i.eq(Cat(sums.o, Const(0, 1))),
    ]
    done = Signal(params.convert.latency)
    is_nan = Signal(params.sums.latency + params.convert.latency, reset_less=True)
    m.d.sync += [done.eq(Cat(sums.o_valid, done)), is_nan.eq(Cat(nan, is_nan))]
    return done[-1], convert.o, is_nan[-1]
