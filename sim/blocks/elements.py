"""Handshakes, FIFOs, crossings and arithmetic units: what kernels are made of."""

from itertools import product
from typing import Any

from streamgen.fifo.crossing import CrossingParams
from streamgen.fifo.queue import Kind, QueueParams
from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    AboveParams,
    AddParams,
    CompareParams,
    ConvertParams,
    DivideParams,
    Float,
    FloatToIntParams,
    IntToFloatParams,
    LogicParams,
    MaximumParams,
    MinimumParams,
    MultiplyAddParams,
    MultiplyParams,
    PredicateParams,
    RelationParams,
    ScaleAccumulatorParams,
    ScaledIntegerParams,
    SignParams,
    SubtractParams,
    WhereParams,
    WholeParams,
)
from streamgen.gateware.arith.relations import LOGIC, PREDICATES, RELATIONS
from streamgen.gateware.arith.signs import SIGNS
from streamgen.gateware.arith.whole import ROUNDINGS
from streamgen.gateware.functions import FUNCTIONS
from streamgen.gateware.stream import (
    CountdownParams,
    FanoutParams,
    GatherParams,
    JoinParams,
    RegisterSliceParams,
    RouterParams,
    ScatterParams,
    SelectorParams,
)

__all__ = ["crossings", "queues", "streams", "units"]

_SLOTS = ((1, 512), (32, 16), (256, 2), (512, 3), (8, 3))


def streams() -> list[Any]:
    return [
        *(RegisterSliceParams(bits=b, stages=s) for b, s in ((1, 1), (24, 1), (32, 2), (512, 1), (280, 3))),
        *(FanoutParams(bits=b, branches=n) for b, n in ((8, 1), (280, 2), (32, 9), (16, 30), (24, 70))),
        *(JoinParams(bits=(8,) * n) for n in (2, 5, 20, 64)),
        *(CountdownParams(bits=b) for b in (1, 4, 8, 13, 20, 32)),
        *(
            SelectorParams(bits=b, ports=n, token_bits=t)
            for b, n, t in ((32, 2, 8), (32, 6, 32), (512, 3, 16))
        ),
        *(
            RouterParams(bits=b, ports=n, token_bits=t)
            for b, n, t in ((32, 2, 8), (32, 6, 32), (512, 16, 16))
        ),
        *(kind(bits=b, slots=s) for kind in (GatherParams, ScatterParams) for b, s in _SLOTS),
        *(kind(bits=b, slots=s, token_bits=16) for kind in (GatherParams, ScatterParams) for b, s in _SLOTS),
    ]


def queues() -> list[QueueParams]:
    shapes: list[tuple[int, int, Kind | None]] = [
        *((bits, depth, None) for bits, depth in product((1, 8, 24, 280), (1, 2, 3, 8))),
        *((bits, depth, "lutram") for bits, depth in product((1, 7, 24, 100), (16, 32, 33, 64, 100))),
        *((8, 200, None), (1, 2000, None), (4, 500, None), (280, 64, None), (512, 30, None)),
        *((bits, depth, "bram") for bits, depth in product((8, 72, 280), (8, 100, 512, 513, 1500, 5000))),
        *((bits, depth, "uram") for bits, depth in product((24, 144, 512), (64, 4096, 5000, 20000))),
    ]
    return [QueueParams(bits=bits, depth=depth, memory=memory) for bits, depth, memory in shapes]


def crossings() -> list[Any]:
    sizes = ((8, 2), (24, 6), (280, 16), (512, 100))
    shapes = [CrossingParams(bits=b, depth=d, boundaries=2) for b, d in sizes]
    return [block for one in shapes for block in (one.sender, *one.relays, one.receiver)]


def units() -> list[Any]:
    forms = (F24, FLOAT32, BFLOAT16, FLOAT16)
    return [
        *(kind(form=form) for kind in (AddParams, MultiplyParams) for form in forms),
        *(kind(form=F24) for kind in (MultiplyAddParams, DivideParams)),
        *(kind(form=F24) for kind in (AboveParams, CompareParams, MaximumParams, MinimumParams)),
        *(FloatToIntParams(width=width, form=F24) for width in (8, 32)),
        *(ConvertParams(source=F24, target=FLOAT16), ConvertParams(source=FLOAT16, target=F24)),
        *(RelationParams(form=F24, relation=name) for name in RELATIONS),
        *(LogicParams(form=F24, operation=name) for name in LOGIC),
        *(PredicateParams(form=F24, predicate=name) for name in PREDICATES),
        *(SignParams(form=F24, function=name) for name in SIGNS),
        *(WholeParams(form=F24, function=name) for name in ROUNDINGS),
        *(kind(form=F24) for kind in (SubtractParams, WhereParams)),
        *(IntToFloatParams(width=width, form=form) for width, form in product((16, 48, 64), forms[:3])),
        *(ScaleAccumulatorParams(width=width, form=F24, exponent_bits=16) for width in (24, 48, 64)),
        *(
            ScaledIntegerParams(width=width, form=F24, exponent_bits=bits)
            for width, bits in ((12, 8), (37, 17), (54, 16), (64, 16))
        ),
        *(ScaleAccumulatorParams(width=48, form=form, exponent_bits=10) for form in forms[1:3]),
    ]


def functions(*forms: Float) -> list[Any]:
    """The units of all functions of one variable."""
    return [function.unit(form) for function, form in product(FUNCTIONS.values(), forms)]
