"""Kernels that compute, and the blocks that they are made of."""

from dataclasses import replace
from itertools import product
from typing import Any

from sim.blocks.cases import Case
from streamgen.contract import Bounds
from streamgen.itensor import ITensor
from streamgen.kernels.attention.dequantise import DequantiseParams
from streamgen.kernels.attention.distance_rows import DistanceRowsParams
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.attention.score_dots import ScoreDotsParams
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.value_factors import ValueFactorsParams
from streamgen.kernels.attention.value_scales import ValueScalesParams
from streamgen.kernels.attention.value_sums import ValueColumnParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.kernels.elementwise import (
    BINARY_OPERATIONS,
    SCALAR_FUNCTIONS,
    UNARY_FUNCTIONS,
    BinaryParams,
    ScalarParams,
    UnaryParams,
)
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.kernels.softmax.log_softmax import LogSoftmaxParams
from streamgen.kernels.softmax.masked_rows import MaskedRowsParams
from streamgen.kernels.softmax.quick_softmax import (
    QuickFactorParams,
    QuickProductParams,
    QuickTermParams,
)
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.kernels.softmax.terms import ExponentialParams, ShareParams, TermSumParams
from streamgen.kernels.top_k import TopKParams
from streamgen.numbers.weights import BYTES, FORMATS

__all__ = [
    "attention_blocks",
    "attentions",
    "column_bounds",
    "columns",
    "dequantisers",
    "distance_rows",
    "elementwise",
    "norms",
    "quantisers",
    "ropes",
    "row_quantisers",
    "softmax_blocks",
    "softmaxes",
    "top_ks",
]

_LANES = (1, 2, 4, 8, 16, 32)


def elementwise() -> list[Case]:
    cases: list[Case] = []
    for lanes, tokens in ((1, 1), (4, 5000)):
        bounds = {"itensor": ITensor((1, lanes), "f24", (1,), (1,), ((0,), ())), "constant": 3.0}
        cases += [(UnaryParams(function=f, lanes=lanes, max_tokens=tokens), bounds) for f in UNARY_FUNCTIONS]
        cases += [
            (BinaryParams(operation=o, lanes=lanes, max_tokens=tokens), bounds) for o in BINARY_OPERATIONS
        ]
        cases += [
            (ScalarParams(function=f, lanes=lanes, max_tokens=tokens), bounds) for f in SCALAR_FUNCTIONS
        ]
    wide = {"lanes": 16, "max_tokens": 1 << 20}
    bounds = {"itensor": ITensor((1, 16), "f24", (1,), (1,), ((0,), ()))}
    cases.append((UnaryParams(function="relu", **wide), bounds))
    cases.append((BinaryParams(operation="multiply", **wide), bounds))
    return cases


def quantisers() -> list[Case]:
    shapes = [*((lanes, 576, sums) for lanes, sums in product(_LANES, (True, False)))]
    shapes += [(4, 32, True), (1, 1536, True), (16, 1024, True), (8, 12288, True), (32, 12288, False)]
    bounds = {"t": 1, "k": 32, "valid_k": 32}
    return [(QuantiseParams(lanes=lanes, max_k=k, sums=sums), bounds) for lanes, k, sums in shapes]


def norms() -> list[NormParams]:
    return [
        NormParams(kind=kind, lanes=lanes, max_k=max_k, max_rows=max_rows, bias=bias, plus_one=plus_one)
        for kind, lanes, max_k, max_rows, bias, plus_one in (
            ("rms", 1, 576, 4096, False, False),
            ("layer", 1, 768, 1024, True, False),
            ("rms", 8, 4096, 2048, False, True),
            ("layer", 4, 1600, 1024, True, False),
            ("layer", 2, 16384, 64, False, True),
            ("rms", 4, 128, 1 << 20, False, False),
            ("rms", 3, 96, 16, True, True),
        )
    ]


def ropes() -> list[RopeParams]:
    shapes = [(1, 64, 64, False, 99), (2, 256, 256, False, 9999), (4, 128, 64, False, 1 << 20)]
    shapes += [(8, 64, 64, False, 999), (2, 64, 64, True, 9999), (8, 64, 32, True, 999)]
    return [
        RopeParams(lanes=lanes, dims=dims, rotated=rotated, interleaved=interleaved, max_heads=heads)
        for lanes, dims, rotated, interleaved, heads in shapes
    ]


_ROWS = ((1, 1, 1), (1, 64, 4096), (2, 64, 4096), (3, 96, 4096), (4, 64, 1 << 16), (8, 64, 1 << 16))


_ROWS = (*_ROWS, (8, 2048, 1 << 20), (16, 128, 1 << 20), (16, 12288, 1 << 20), (32, 64, 1 << 16))


def row_quantisers() -> list[Case]:
    return [
        (QuantiseRowsParams(lanes=n, max_d=d, max_tokens=t), {"t": 1, "features": d, "d": d})
        for n, d, t in _ROWS
    ]


def dequantisers() -> list[Case]:
    return [
        (
            DequantiseParams(lanes=n, scale_dtype=kind, max_d=d, max_tokens=t),
            {"t": 1, "features": d, "d": d},
        )
        for (n, d, t), kind in product(_ROWS[:-1:2], ("i24", "f24"))
    ]


def softmax_blocks() -> list[Any]:
    rows = ((1, 40), (1, 2048), (3, 100), (16, 256), (32, 4096))
    return [
        *(MaskedRowsParams(lanes=lanes, max_length=length) for lanes, length in rows),
        *(ShareParams(p_bits=bits) for bits in (8, 12, 16)),
        ExponentialParams(),
        QuickTermParams(),
        QuickProductParams(),
        *(QuickFactorParams(width=width) for width in (40, 45)),
        *(TermSumParams(lanes=n, bits=b, count=c) for n, b, c in ((1, 12, 100), (32, 16, 4096), (3, 40, 40))),
    ]


def softmaxes() -> list[Any]:
    return [
        AttentionSoftmaxParams(lanes=1, max_length=40, p_bits=12),
        AttentionSoftmaxParams(lanes=3, max_length=300, p_bits=16),
        AttentionSoftmaxParams(lanes=8, max_length=2048, p_bits=8),
        SoftmaxParams(lanes=1, max_length=40),
        SoftmaxParams(lanes=4, max_length=1024),
        LogSoftmaxParams(lanes=1, max_length=40),
        LogSoftmaxParams(lanes=4, max_length=1024),
    ]


def attention_blocks() -> list[Any]:
    scales = ((1, 40, 6, 6), (1, 2048, 12, 12), (3, 14, 6, 6), (8, 512, 10, 13))
    columns = ((1, 12, 54), (1, 8, 45), (1, 16, 60), (2, 12, 54), (3, 16, 60), (4, 12, 54))
    return [
        *(ScoreDotsParams(dims=dims, lanes=lanes) for dims, lanes in ((4, 1), (9, 3), (16, 2), (64, 1))),
        *(
            ValueScalesParams(lanes=lanes, max_tiles=tiles, rows_bits=rows, length_bits=length)
            for lanes, tiles, rows, length in scales
        ),
        *(ValueFactorsParams(lanes=lanes, p_bits=bits) for lanes, bits in ((1, 12), (2, 16), (3, 8))),
        *(
            ValueColumnParams(factors=ValueFactorsParams(lanes=lanes, p_bits=bits), sum_bits=width)
            for lanes, bits, width in columns
        ),
    ]


def attentions() -> list[Case]:
    bounds = {"heads": 1, "t": 1, "length": 1, "scale": 1.0}
    small = {"dims": 6, "lanes": 3, "group": 1, "max_length": 40, "max_rows": 63}
    real = {"dims": 64, "group": 3, "max_length": 2048, "max_rows": 4096}
    several = [
        AttentionScoresParams(**small),
        *(AttentionScoresParams(lanes=lanes, **real) for lanes in (1, 2)),
        AttentionValuesParams(p_bits=16, width=3, **small),
        AttentionValuesParams(lanes=1, width=4, **real),
        AttentionValuesParams(lanes=2, width=2, **real | {"dims": 16}),
    ]
    return [(params, bounds) for params in several]


def distance_rows() -> list[Case]:
    sizes = ((1, 4, 1, 40), (2, 8, 1, 512), (8, 8, 1, 512), (4, 16, 4, 1024), (8, 6, 2, 50))
    several = [
        DistanceRowsParams(lanes=n, heads=heads, group=group, span=span, max_tokens=16, max_length=span)
        for n, heads, group, span in sizes
    ]
    return [(params, {"t": 1, "position": 8, "length": 9}) for params in several]


def top_ks() -> list[Case]:
    shapes = ((1, 50, 1), (4, 49152, 1), (32, 262144, 1), (1, 64, 8), (8, 49152, 16), (3, 262144, 5))
    several = [TopKParams(lanes=n, max_length=length, max_k=k) for n, length, k in shapes]
    return [(params, {"rows": 1, "length": 8, "k": 1}) for params in several]


def columns() -> list[ColumnParams]:
    columns = [
        (1, 1, ("w4",), 32, 8, True, 576),
        (1, 2, ("w4",), 32, 8, True, 1536),
        (1, 4, ("w4",), 64, 8, False, 576),
        (2, 2, ("w4",), 32, 12, True, 1024),
        (1, 3, ("w4",), 128, 16, True, 4096),
        (1, 1, ("w4",), 32, 0, False, 576),
        (1, 2, ("w8",), 32, 0, False, 576),
        (1, 1, ("w8",), 32, 0, False, 12288),
        (4, 1, ("w8",), 32, 0, False, 1024),
        (2, 2, ("w8",), 32, 0, False, 2048),
        (1, 2, ("w4", "w8"), 32, 8, True, 1536),
        (2, 1, ("w4", "w8"), 64, 10, False, 576),
        (1, 4, ("w4", "w8"), 32, 0, False, 576),
    ]
    for form in FORMATS.values():
        if form.multiplicands:  # lanes decode it
            columns.append((1, 2, (form.name,), form.groups[0], 8, False, 576))
            columns.append((2, 1, (form.name, BYTES.name), form.groups[0], 16, False, 1024))
    found = [
        ColumnParams(
            t_lanes=t,
            n_lanes=n,
            formats=formats,
            group=group,
            scale_bits=scale_bits,
            minimum=minimum,
            max_k=k,
            max_n=96 * n,
            max_t=16 * t,
        )
        for t, n, formats, group, scale_bits, minimum, k in columns
    ]
    return [*found, *(replace(found[k], bias=True) for k in (0, 10))]


def column_bounds(params: ColumnParams) -> Bounds:
    return {
        "t": params.t_lanes,
        "k": params.group,
        "n": params.n_lanes,
        "format": params.formats[0],
        "grouped": params.scale_bits > 0,
    }
