"""Our own kernels and converters pass the conformance test that users run on theirs.

The kit has no memory; kernels with memory ports are held to their promises in tests/unit/kernels/memory.
"""

from typing import Literal

import numpy as np
import pytest

from streamgen.artifact.kv_layout import KvLayout
from streamgen.contract import KernelParams
from streamgen.converters import PingPongParams
from streamgen.itensor import ITensor
from streamgen.kernels.attention.dequantise import DequantiseParams
from streamgen.kernels.attention.kv_cache import KvAppendParams, KvReadParams
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import join_scale
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.matmul.weights import UnevenWeightsParams, WeightsParams
from streamgen.kernels.memory import PassTilesParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.kernels.moves.unzip import UnzipParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.kernels.top_k import TopKParams
from streamgen.numbers import formats
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case
from tests.shared.campaigns import sampled
from tests.unit.kernels.matmul.matmul_cases import beats_of, bounds_of, column, operands

Kernel = tuple[KernelParams, list[Case], list[dict]]


def rows(tokens: int, lanes: int, dtype: str = "f24") -> ITensor:
    """Row-major, two tokens a row."""
    return ITensor((1, lanes), dtype, (tokens // 2, 2), (1, lanes), ((0,), (1,)))


def columns(tokens: int, lanes: int) -> ITensor:
    """The same, down the columns."""
    return ITensor((1, lanes), "f24", (2, tokens // 2), (lanes, 1), ((1,), (0,)))


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """f24 of every size, special ones among them."""
    rng = np.random.default_rng(seed)
    found = formats.round_f24(rng.normal(size=shape) * np.exp2(rng.integers(-30, 30, shape)))
    found.reshape(-1)[:4] = [0, -np.inf, np.nan, 2.0**-126][: found.size]
    return found


def elementwise(params: UnaryParams | BinaryParams) -> Kernel:
    orders = [rows(12, params.lanes), columns(2, params.lanes), columns(20, params.lanes)]
    cases = [
        ({"itensor": order}, {port: values(order.shape, 3 * k + i) for i, port in enumerate(params.operands)})
        for k, order in enumerate(orders)
    ]
    return params, cases, [{"itensor": rows(params.max_tokens + 2, params.lanes)}]


def fork(ways: int) -> Kernel:
    params = ForkParams(token_bits=64, ways=ways, max_tokens=30)
    orders = [rows(tokens, 8, "i8") for tokens in (14, 2, 30)]
    rng = np.random.default_rng(ways)
    cases = [
        ({"itensor": order}, {"i": rng.integers(-128, 128, order.shape).astype(np.int8)}) for order in orders
    ]
    return params, cases, [{"itensor": rows(32, 8, "i8")}, {"itensor": rows(2, 4, "i8")}]


def concat() -> Kernel:
    params = ConcatParams(ways=3, dtype="f24", element_shape=(1, 1), max_tokens=30)
    orders = [rows(14, 1), columns(2, 1), columns(30, 1)]
    cases = [
        ({"itensor": order}, {f"i_{way}": values(order.shape, 3 * k + way) for way in range(3)})
        for k, order in enumerate(orders)
    ]
    return params, cases, [{"itensor": rows(32, 1)}, {"itensor": rows(2, 2)}]


def switch(kind: type[SelectParams] | type[RouteParams]) -> Kernel:
    params = kind(token_bits=64, ways=3, max_tokens=30)
    rng = np.random.default_rng(3)
    cases = []
    for way, tokens in ((2, 14), (0, 2), (1, 30), (2, 4)):
        bounds = {"itensor": rows(tokens, 8, "i8"), "way": way}
        port = next(iter(params.inputs(bounds)))
        cases.append((bounds, {port: rng.integers(-128, 128, bounds["itensor"].shape).astype(np.int8)}))
    return params, cases, [{"itensor": rows(32, 8, "i8"), "way": 0}, {"itensor": rows(2, 8, "i8"), "way": 3}]


def take_rows() -> Kernel:
    params = TakeRowsParams(dtype="f24", lanes=4, max_tokens=40)
    several = [
        {"rows": t, "features": features, "first": first, "count": count}
        for t, features, first, count in ((5, 32, 4, 1), (1, 4, 0, 1), (7, 8, 2, 3), (3, 12, 0, 3))
    ]
    several.append({"rows": 5, "features": 32, "first": 4, "count": 1, "tile": 8})
    cases = [(bounds, {"i": values((bounds["rows"], bounds["features"]), 1)}) for bounds in several]
    return params, cases, [several[0] | {"rows": 6}, several[0] | {"first": 5}, several[0] | {"count": 2}]


def fit_rows(dtype: str, lanes: int) -> Kernel:
    """Rows cut off, filled up, of equal length, one row, rows of a token, rows without their beginnings."""
    params = FitRowsParams(dtype=dtype, lanes=lanes, max_tokens=40)
    shapes = (
        *((5, 8, 3, 0), (4, 2, 7, 0), (3, 4, 4, 0), (1, 5, 40, 0), (1, 1, 1, 0), (20, 1, 2, 0)),
        *((5, 8, 3, 5), (2, 9, 2, 1), (20, 2, 1, 1)),
    )
    cases: list[Case] = []
    for rows, taken, made, first in shapes:
        shape = (rows, taken * lanes)
        data = values(shape, made)
        if dtype == "i8":
            data = np.random.default_rng(made).integers(-128, 128, shape).astype(np.int8)
        fitted = {"rows": rows, "features": shape[1], "fitted": made * lanes, "first": first * lanes}
        cases.append((fitted, {"i": data}))
    bounds = cases[0][0]
    refused = [bounds | {"rows": 6}, bounds | {"fitted": 9 * lanes}, bounds | {"fitted": 0}]
    return params, cases, [*refused, bounds | {"first": 6 * lanes}]


def join_rows() -> Kernel:
    params = JoinRowsParams(ways=3, dtype="f24", lanes=2, max_tokens=40)
    cases = []
    for rows, parts in ((5, (2, 4, 8)), (1, (2, 2, 2)), (13, (2, 2, 2))):
        inputs = {f"i_{way}": values((rows, part), way) for way, part in enumerate(parts)}
        cases.append(({"rows": rows, "parts": parts}, inputs))
    bounds = cases[0][0]
    return params, cases, [bounds | {"parts": (2, 4)}, bounds | {"parts": (2, 4, 5)}, bounds | {"rows": 6}]


def segments() -> Kernel:
    params = SegmentsParams(token_bits=48, ways=3, max_tokens=40)
    cases = []
    for sizes, tokens in (((3, 1, 1), 4), ((1, 1, 1), 1), ((2, 5, 3), 2)):
        order = ITensor((1, 2), "f24", (sum(sizes), tokens, 2), (4, 1, 2), ((1,), (0, 2)))
        cases.append(({"itensor": order, "sizes": sizes}, {"i": values(order.shape, tokens)}))
    bounds = cases[0][0]
    return params, cases, [bounds | {"sizes": (3, 2)}, bounds | {"sizes": (3, 1, 2)}]


def unzip() -> Kernel:
    params = UnzipParams(ways=2, dtype="f24", lanes=3, max_tokens=40)
    cases = []
    for n_tiles, tokens in ((3, 4), (1, 1), (10, 2)):
        order = ITensor((1, 6), "f24", (n_tiles, tokens, 2), (12, 1, 6), ((1,), (0, 2)))
        cases.append(({"itensor": order}, {"i": values(order.shape, tokens)}))
    return params, cases, [{"itensor": rows(42, 6)}, {"itensor": rows(2, 3)}]


def quantise(lanes: int, sums: bool) -> Kernel:
    params = QuantiseParams(lanes=lanes, max_k=128, sums=sums)
    cases = [
        ({"t": t, "k": k, "valid_k": valid}, {"i": values((t, k), k)})
        for t, k, valid in ((3, 96, 96), (1, 32, 5), (2, 128, 100))
    ]
    refused = [{"t": 1, "k": 160, "valid_k": 1}, {"t": 1, "k": 32, "valid_k": 33}]
    return params, cases, refused


def norm(kind: Literal["rms", "layer"], bias: bool) -> Kernel:
    params = NormParams(kind=kind, lanes=4, max_k=64, max_rows=20, bias=bias, plus_one=not bias)
    ports = ("i_weight", "i_bias") if bias else ("i_weight",)
    cases = [
        (
            {"t": t, "k": k, "valid_k": valid, "epsilon": epsilon},
            {"i": values((t, k), k)} | {port: values((1, k), k + 1) for port in ports},
        )
        for t, k, valid, epsilon in ((3, 64, 64, 1e-5), (1, 4, 3, 1e-6), (20, 4, 4, 0.0), (5, 24, 17, 1e-2))
    ]
    bounds = cases[0][0]
    return params, cases, [bounds | {"k": 68}, bounds | {"t": 21}, bounds | {"epsilon": -1.0}]


ROWS = ((3, 24, 8), (1, 4, 4), (2, 32, 32))  # t, features, d
LONG_ROWS = [{"t": 1, "features": features, "d": d} for features, d in ((64, 64), (6, 6), (20, 8))]


def quantise_rows() -> Kernel:
    params = QuantiseRowsParams(lanes=4, max_d=32, max_tokens=40)
    cases = [
        ({"t": t, "features": features, "d": d}, {"i": values((t, features), d)}) for t, features, d in ROWS
    ]
    return params, cases, LONG_ROWS


def dequantise(scale_dtype: str) -> Kernel:
    params = DequantiseParams(lanes=4, scale_dtype=scale_dtype, max_d=32, max_tokens=40)
    rng = np.random.default_rng(8)
    cases = []
    for t, features, d in ROWS:
        groups = (t, features // d)
        scales = values(groups, d)
        if scale_dtype == "i24":
            scales = join_scale(rng.integers(128, 256, groups), rng.integers(-150, 150, groups))
        codes = rng.integers(-127, 128, (t, features)).astype(np.int8)
        cases.append(({"t": t, "features": features, "d": d}, {"i_x": codes, "i_scale": scales}))
    return params, cases, LONG_ROWS


CACHE = KvLayout(dtype="i8", width=40, heads=3, layers=3, positions=50, channels=2)


def kv_append() -> Kernel:
    params = KvAppendParams(layout=CACHE)
    rng = np.random.default_rng(9)
    cases = []
    for layer, position, rows in ((0, 0, 9), (2, 48, 2), (1, 7, 4)):
        bounds = {"layer": layer, "position": position, "rows": rows}
        ports = params.inputs(bounds)
        inputs = {name: np.ones(itensor.shape, np.uint8) for name, itensor in ports.items()}
        inputs["i"] = rng.integers(-128, 128, ports["i"].shape).astype(np.int8)
        cases.append((bounds, inputs))
    return params, cases, [{"layer": 0, "position": 49, "rows": 2}, {"layer": 3, "position": 0, "rows": 1}]


def kv_read() -> Kernel:
    params = KvReadParams(layout=CACHE)
    cases: list[Case] = [({"layer": layer, "rows": rows}, {}) for layer, rows in ((0, 50), (2, 2), (1, 7))]
    return params, cases, [{"layer": 0, "rows": 51}, {"layer": 3, "rows": 1}]


def pass_tiles(dtype: str, width: int, lanes: int, heads: int = 3) -> Kernel:
    """Whole tiles and others, one row, all rows; heads once and often."""
    params = PassTilesParams(dtype=dtype, width=width, heads=heads, lanes=lanes, max_rows=11, max_again=9)
    rng = np.random.default_rng(lanes)
    most = 1 << (formats.bits(dtype) - 1)
    cases: list[Case] = []
    for rows, again in ((11, 9), (11, 1), (8, 3), (1, 1), (2, 5), (1, 9)):
        i = rng.integers(-most, most, (rows, heads * width)).astype(np.int8 if dtype == "i8" else np.int32)
        cases.append(({"rows": rows, "again": again}, {"i": i}))
    return params, cases, [{"rows": 12, "again": 1}, {"rows": 0, "again": 1}, {"rows": 3, "again": 10}]


def matmul(params: ColumnParams, *changes: dict) -> Kernel:
    rng = np.random.default_rng(7)
    several = [bounds_of(params, **change) for change in changes]
    cases = [(bounds, operands(params, bounds, rng)) for bounds in several]
    refused = [bounds_of(params, **change) for change in ({"k": 160}, {"t": 0}, {"n": params.max_n + 1})]
    return params, cases, refused


def weights(params: ColumnParams, *changes: dict) -> Kernel:
    _, cases, refused = matmul(params, *changes)
    feed = WeightsParams(column=params)
    return feed, [(bounds, beats_of(feed, bounds, inputs)) for bounds, inputs in cases], refused


def uneven_weights(params: ColumnParams) -> Kernel:
    """A whole last tile, and a last tile of three rows of eight."""
    feed, rng = UnevenWeightsParams(column=params), np.random.default_rng(8)
    cases = []
    for used in (params.max_n, params.max_n - 5):
        bounds = {**bounds_of(params), "used": used}
        inputs = operands(params, bounds, rng)
        inputs["i_w"][used:] = 0
        cases.append((bounds, beats_of(feed, bounds, inputs)))
    return feed, cases, [{**bounds_of(params), "used": params.max_n - params.n_lanes}]


def softmax(params: AttentionSoftmaxParams | SoftmaxParams) -> Kernel:
    several: list[dict] = [
        {"rows": 3, "length": 11, "causal": True, "position": 4, "rows_per_position": 2},
        {"rows": 1, "length": 1},
        {"rows": 2, "length": 16, "start": 3, "window": 5, "position": 9},
    ]
    cases = [(bounds, {"i": values(params.inputs(bounds)["i"].shape, 1)}) for bounds in several]
    return params, cases, [{"rows": 1, "length": 17}, {"rows": 1, "length": 0}]


def head_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return join_scale(rng.integers(128, 256, shape), rng.integers(-20, 1, shape))


def attention_scores() -> Kernel:
    params = AttentionScoresParams(dims=8, lanes=2, group=2, max_length=9, max_rows=20)
    rng = np.random.default_rng(10)
    cases = []
    for heads, t, length, scale in ((2, 3, 9, 0.125), (1, 1, 1, -2.0), (1, 4, 2, 1e-3)):
        bounds = {"heads": heads, "t": t, "length": length, "scale": scale}
        shapes = {port: itensor.shape for port, itensor in params.inputs(bounds).items()}
        codes = {port: rng.integers(-127, 128, shapes[port]).astype(np.int8) for port in ("i_q", "i_k")}
        scales = {port: head_scales(rng, shapes[port]) for port in ("i_q_scale", "i_k_scale")}
        cases.append((bounds, codes | scales))
    bounds = cases[0][0]
    return params, cases, [bounds | {"length": 10}, bounds | {"t": 6}, bounds | {"scale": float("inf")}]


def attention_values() -> Kernel:
    params = AttentionValuesParams(dims=8, lanes=2, group=2, max_length=9, max_rows=20, width=4)
    rng = np.random.default_rng(11)
    cases = []
    for heads, t, length in ((2, 3, 9), (1, 1, 1), (4, 1, 2), (1, 4, 7)):
        bounds = {"heads": heads, "t": t, "length": length}
        shapes = {port: itensor.shape for port, itensor in params.inputs(bounds).items()}
        p = rng.integers(0, 1 << 12, shapes["i_p"]).astype(np.uint16)
        inputs = {
            "i_p": p,
            "i_sum": formats.round_f24(p.sum(axis=1)),
            "i_v": rng.integers(-127, 128, shapes["i_v"]).astype(np.int8),
            "i_v_scale": head_scales(rng, shapes["i_v_scale"]),
        }
        cases.append((bounds, inputs))
    bounds = cases[0][0]
    return params, cases, [bounds | {"length": 10}, bounds | {"t": 6}, bounds | {"heads": 0}]


def top_k(lanes: int, max_k: int) -> Kernel:
    params = TopKParams(lanes=lanes, max_length=20, max_k=max_k)
    several = [{"rows": rows, "length": n, "k": min(n, max_k)} for rows, n in ((3, 11), (4, 1), (1, 20))]
    cases = [(bounds, {"i": values(params.inputs(bounds)["i"].shape, 1)}) for bounds in several]
    return params, cases, [{"rows": 1, "length": 21, "k": 1}, {"rows": 1, "length": 20, "k": max_k + 1}]


def pingpong(*pairs: tuple[str, str]) -> Kernel:
    """The first pair of itensors is the largest."""
    several = [{"source": ITensor.parse(source), "target": ITensor.parse(target)} for source, target in pairs]
    rng = np.random.default_rng(len(pairs))
    cases = [
        (bounds, {"i": rng.integers(-99, 99, bounds["source"].shape).astype(np.int8)}) for bounds in several
    ]
    swapped = {"source": several[0]["target"], "target": several[0]["source"]}
    return PingPongParams(**several[0]), cases, [swapped]


TILES = "itensor<2x2xi8, iter_space: [{0},4]*[2,2], iter_map: (d0,d1)->(d0,d1)>"
PANELS = "itensor<4x2xi8, iter_space: [4,{0}]*[2,4], iter_map: (d0,d1)->(d1,d0)>"
TWICE = "itensor<4x2xi8, iter_space: [4,2,{0}]*[2,1,4], iter_map: (d0,d1,d2)->(d2,d0)>"

KERNELS = {
    **{name: elementwise(UnaryParams(function=name, lanes=2, max_tokens=20)) for name in ("relu", "silu")},
    **{
        name: elementwise(BinaryParams(operation=name, lanes=2, max_tokens=20))
        for name in ("add", "multiply")
    },
    "fork-3": fork(3),
    "fork-9": fork(9),
    "concat": concat(),
    "select": switch(SelectParams),
    "route": switch(RouteParams),
    "take-rows": take_rows(),
    **{f"fit-rows-{dtype}-{n}": fit_rows(dtype, n) for dtype, n in (("f24", 1), ("i8", 4), ("f24", 16))},
    "segments": segments(),
    "unzip": unzip(),
    "quantise": quantise(4, True),
    "quantise-32-lanes": quantise(32, False),
    "quantise-rows": quantise_rows(),
    **{f"dequantise-{kind}": dequantise(kind) for kind in ("i24", "f24")},
    "kv-append": kv_append(),
    "kv-read": kv_read(),
    "pass-tiles": pass_tiles("i8", 8, 4),
    "pass-tiles-scales": pass_tiles("i24", 1, 2),
    "pass-tiles-wide": pass_tiles("i8", 4, 16, heads=1),
    "column-w4": matmul(column(minimum=True, t_lanes=2), {}, {"t": 2, "k": 32}),
    "column-both": matmul(
        column(formats=("w4", "w8"), minimum=True), {}, {"format": "w8", "t": 1}, {"grouped": False, "k": 64}
    ),
    "weights-w4": weights(column(n_lanes=4, max_n=40, minimum=True), {}, {"t": 2, "k": 32}, {"n": 4}),
    "weights-both": weights(
        column(formats=("w4", "w8"), max_n=6), {}, {"format": "w8", "t": 1}, {"grouped": False, "k": 64}
    ),
    "weights-uneven": uneven_weights(column(n_lanes=8, max_n=24)),
    "rms-norm": norm("rms", bias=False),
    "layer-norm": norm("layer", bias=True),
    "softmax": softmax(SoftmaxParams(lanes=2, max_length=16)),
    "attention-softmax": softmax(AttentionSoftmaxParams(lanes=4, max_length=16, p_bits=12)),
    "attention-scores": attention_scores(),
    "attention-values": attention_values(),
    "argmax": top_k(4, 1),
    "top-k": top_k(2, 3),
    "pingpong": pingpong(
        *((TILES.format(trips), PANELS.format(trips // 2)) for trips in (4, 2)),
    ),
    "pingpong-re-use": pingpong(*((PANELS.format(trips), TWICE.format(trips)) for trips in (2, 1))),
}


@pytest.mark.slow
@pytest.mark.parametrize("aspect", sampled(ASPECTS, [name for name in ASPECTS if name != "resources"]))
@pytest.mark.parametrize("name", KERNELS)
def test_conforms(name: str, aspect: str) -> None:
    """Resources of every kind of kernel, in other sizes, are in the sweep of all blocks."""
    params, cases, refused = KERNELS[name]
    check(params, cases, refused=refused, aspects=[aspect])
