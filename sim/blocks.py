"""Every kind of block that a design is built of, each over a sweep of its parameters.

    sweep()     kind -> [(params, bounds)]; bounds are None for blocks that promise by `resources`

What is checked over it: resources against synthesis, and the depth of paths (`streamgen.testing.synthesis`).
"""

from dataclasses import replace
from itertools import product
from typing import Any

from streamgen.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    AddParams,
    CompareParams,
    ConvertParams,
    DivideParams,
    ExpParams,
    FloatToIntParams,
    GeluParams,
    IntToFloatParams,
    MaximumParams,
    MultiplyAddParams,
    MultiplyParams,
    ReciprocalParams,
    ReluParams,
    SaturatingParams,
    ScaleAccumulatorParams,
    ScaledIntegerParams,
    SigmoidParams,
    SquareRootParams,
)
from streamgen.buffers.kv_layout import KvLayout
from streamgen.buffers.packing import MemoryLayout
from streamgen.contract import Bounds, Field
from streamgen.control.control import ControlParams
from streamgen.control.counters import CountersParams
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.control.registers import ControlRegistersParams
from streamgen.control.sequencer import SequencerParams
from streamgen.control.status import StatusWriterParams
from streamgen.converters import LayoutParams, PingPongParams, choose_converter
from streamgen.fifo.crossing import CrossingParams
from streamgen.fifo.queue import Kind, QueueParams
from streamgen.itensor import ITensor
from streamgen.kernels.attention.dequantise import DequantiseParams, ScaleCodeParams
from streamgen.kernels.attention.kv_cache import KvAppendParams, KvReadParams
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.attention.row_codes import RowCodeParams
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
from streamgen.kernels.matmul.group_codes import GroupCodesParams
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.embedding import EmbeddingParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.kernels.moves.unzip import UnzipParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.kernels.softmax.masked_rows import MaskedRowsParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.kernels.softmax.terms import ExponentialParams, ShareParams, TermSumParams
from streamgen.kernels.top_k import TopKParams
from streamgen.memory import (
    KvLoadParams,
    KvStoreParams,
    RowsLoadParams,
    SpillLayout,
    SpillLoadParams,
    SpillStoreParams,
)
from streamgen.memory.kv_tiles import KvTilesParams
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams
from streamgen.stream import (
    CountdownParams,
    FanoutParams,
    GatherParams,
    JoinParams,
    RegisterSliceParams,
    RouterParams,
    ScatterParams,
    SelectorParams,
)

__all__ = ["Case", "sweep"]

Case = tuple[Any, Bounds | None]


def sweep() -> dict[str, list[Case]]:
    """All cases by kind; kinds are sorted by what they belong to."""
    return {
        "stream": _plain(_streams()),
        "queue": _plain(_queues()),
        "crossing": _plain(_crossings()),
        "arith": _plain(_units()),
        "client": _plain(_clients()),
        "master": _plain(ChannelMasterParams(readers=r, writers=w) for r, w in _MASTERS),
        "dma": _dmas(),
        "control": _plain(_control()),
        "elementwise": _elementwise(),
        "fork": [(params, {"itensor": _bits(params.token_bits)}) for params in _forks()],
        "concat": _concats(),
        "select and route": _switches(),
        "take rows": _row_takers(),
        "fit rows": _row_fitters(),
        "join rows": _row_joiners(),
        "segments": _segments(),
        "unzip": _unzips(),
        "group codes": _plain(
            GroupCodesParams(lanes=n, sums=s) for n, s in product((1, 4, 32), (False, True))
        ),
        "quantise": _quantisers(),
        "converter": [(p, {"source": p.source, "target": p.target}) for p in _converters()],
        "norm": [(params, {"t": 1, "k": params.lanes, "valid_k": 1, "epsilon": 1e-5}) for params in _norms()],
        "embedding": [(params, {"ids": 1, "vocabulary": 1, "offset": 0}) for params in _embeddings()],
        "rope": [(params, {"rows": 1, "heads": 1}) for params in _ropes()],
        "row codes": _plain((RowCodeParams(), ScaleCodeParams())),
        "quantise rows": _row_quantisers(),
        "dequantise": _dequantisers(),
        "kv cache": _caches(),
        "memory": _memory_kernels(),
        "softmax blocks": _plain(_softmax_blocks()),
        "softmax": [(params, {"rows": 1, "length": 1}) for params in _softmaxes()],
        "attention blocks": _plain(_attention_blocks()),
        "attention": _attentions(),
        "top k": _top_ks(),
        "column": [(params, _column_bounds(params)) for params in _columns()],
        "spill": _spills(),
        "kv tiles": _plain(_kv_tiles()),
    }


_LANES = (1, 2, 4, 8, 16, 32)
_MASTERS = ((1, 0), (0, 1), (1, 1), (3, 0), (4, 2), (6, 3), (12, 1), (16, 16))


def _plain(params: Any) -> list[Case]:
    return [(p, None) for p in params]


def _bits(bits: int) -> ITensor:
    return ITensor((1,), f"u{bits}", (4,), (1,), ((0,),)) if bits <= 32 else _wide(bits)


def _wide(bits: int) -> ITensor:
    """A stream of tokens of so many bits: of elements of 8."""
    return ITensor((bits // 8,), "u8", (4,), (bits // 8,), ((0,),))


def _streams() -> list[Any]:
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


_SLOTS = ((1, 512), (32, 16), (256, 2), (512, 3), (8, 3))


def _queues() -> list[QueueParams]:
    shapes: list[tuple[int, int, Kind | None]] = [
        *((bits, depth, None) for bits, depth in product((1, 8, 24, 280), (1, 2, 3, 8))),
        *((bits, depth, "lutram") for bits, depth in product((1, 7, 24, 100), (16, 32, 33, 64, 100))),
        *((8, 200, None), (1, 2000, None), (4, 500, None), (280, 64, None), (512, 30, None)),
        *((bits, depth, "bram") for bits, depth in product((8, 72, 280), (8, 100, 512, 513, 1500, 5000))),
        *((bits, depth, "uram") for bits, depth in product((24, 144, 512), (64, 4096, 5000, 20000))),
    ]
    return [QueueParams(bits=bits, depth=depth, memory=memory) for bits, depth, memory in shapes]


def _crossings() -> list[Any]:
    sizes = ((8, 2), (24, 6), (280, 16), (512, 100))
    shapes = [CrossingParams(bits=b, depth=d, boundaries=2) for b, d in sizes]
    return [block for one in shapes for block in (one.sender, *one.relays, one.receiver)]


def _units() -> list[Any]:
    forms = (F24, FLOAT32, BFLOAT16, FLOAT16)
    return [
        *(kind(form=form) for kind in (AddParams, MultiplyParams, ReluParams) for form in forms),
        *(kind(form=F24) for kind in (MultiplyAddParams, DivideParams, SquareRootParams)),
        *(kind(form=F24) for kind in (CompareParams, MaximumParams)),
        *(FloatToIntParams(width=width, form=F24) for width in (8, 32)),
        *(ConvertParams(source=F24, target=FLOAT16), ConvertParams(source=FLOAT16, target=F24)),
        *(ExpParams(form=F24, base_two=two) for two in (False, True)),
        *(ReciprocalParams(form=F24, root=root) for root in (False, True)),
        *(SaturatingParams(form=F24, function=function) for function in ("tanh", "erf")),
        *(GeluParams(form=F24, tanh=tanh) for tanh in (False, True)),
        *(IntToFloatParams(width=width, form=form) for width, form in product((16, 48, 64), forms[:3])),
        *(ScaleAccumulatorParams(width=width, form=F24, exponent_bits=16) for width in (24, 48, 64)),
        *(
            ScaledIntegerParams(width=width, form=F24, exponent_bits=bits)
            for width, bits in ((12, 8), (37, 17), (54, 16), (64, 16))
        ),
        *(ScaleAccumulatorParams(width=48, form=form, exponent_bits=10) for form in forms[1:3]),
        *(SigmoidParams(form=form, times_x=x) for form, x in product(forms, (False, True))),
    ]


def _clients() -> list[Any]:
    return [
        *(
            ReadClientParams(depth=d, burst=b)
            for d, b in ((16, 1), (64, 16), (64, 64), (512, 64), (4096, 64))
        ),
        *(ReadClientParams(depth=d, burst=64, under_way=u) for d, u in ((512, 139), (1024, 139))),
        *(WriteClientParams(depth=d, burst=b) for d, b in ((16, 8), (64, 64), (128, 64), (512, 16))),
    ]


def _dmas() -> list[Case]:
    cases: list[Case] = []
    for dtype, shape in (
        ("f24", (1, 1)),
        ("f24", (1, 3)),
        ("f24", (1, 16)),
        ("i4", (4, 32)),
        ("i4", (16, 32)),
        ("i8", (4, 1, 2)),
        ("i8", (8, 32)),
        ("f24", (2, 16)),
    ):
        layout = MemoryLayout(dtype, shape)
        bounds = {"itensor": ITensor(shape, dtype, (4,), (1,), ((0,), *[()] * (len(shape) - 1))), "offset": 0}
        for tokens in (20, 9000):
            cases += [(LoadParams(layout=layout, max_tokens=tokens), bounds)]
            cases += [(StoreParams(layout=layout, max_tokens=tokens), bounds)]
    layout = MemoryLayout("f24", (1, 4))
    bounds = {"itensor": ITensor((1, 4), "f24", (4,), (1,), ((0,), ())), "offset": 0}
    cases += [(LoadParams(layout=layout, max_tokens=1 << 20, prefetch=n), bounds) for n in (64, 2048)]
    cases += [(StoreParams(layout=layout, max_tokens=1 << 20, depth=n, burst=16), bounds) for n in (32, 512)]
    return cases


def _control() -> list[Any]:
    fields = (Field("offset", 32), Field("tokens", 16), Field("k", 10))
    targets = (
        Target(fields=fields),
        Target(fields=fields, constants=(("k", 5),)),
        Target(fields=fields, constants=(("offset", 0), ("tokens", 3), ("k", 5))),
        Target(fields=fields[:1]),
        Target(fields=fields, depth=1),
        Target(fields=fields, constants=(("offset", 0), ("tokens", 3), ("k", 5)), depth=1),
    )
    names = ("table", "status", "x", "y", *(f"weights_{k}" for k in range(28)))
    return [
        *targets,
        *(DescriptorBusParams(targets=(targets * 40)[:n]) for n in (1, 3, 10, 40, 70)),
        *(CountersParams(nodes=n, depths=d) for n, d in ((1, ()), (6, (1, 16, 500)), (40, (2, 64) * 25))),
        *(ControlRegistersParams(pointers=names[:n]) for n in (2, 6, 16, 32)),
        *(SequencerParams(targets=n, stores=s) for n, s in ((3, 1), (40, 2), (200, 8))),
        *(StatusWriterParams(counters=n, design_hash=0x0123_4567_89AB_CDEF) for n in (0, 30, 400)),
        *(
            ControlParams(
                pointers=names[:pointers],
                targets=targets,
                stores=stores,
                counters=counters,
                channels=channels,
                design_hash=0x0123_4567_89AB_CDEF,
            )
            for pointers, targets, stores, counters, channels in ((4, 5, 1, 12, 1), (12, 60, 3, 250, 9))
        ),
    ]


def _elementwise() -> list[Case]:
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


def _forks() -> list[ForkParams]:
    return [
        ForkParams(token_bits=bits, ways=ways, max_tokens=tokens)
        for bits, ways, tokens in ((8, 2, 4), (24, 3, 1000), (280, 2, 60000), (280, 8, 1000), (512, 20, 100))
    ]


def _concats() -> list[Case]:
    cases: list[Case] = []
    for ways, dtype, shape, tokens in (
        (2, "f24", (1, 1), 10),
        (4, "f24", (1, 1), 5000),
        (16, "f24", (1, 1), 1 << 16),
        (3, "i8", (4, 1), 300),
        (8, "f24", (4, 1), 1000),
    ):
        params = ConcatParams(ways=ways, dtype=dtype, element_shape=shape, max_tokens=tokens)
        cases.append((params, {"itensor": ITensor(shape, dtype, (4,), (1,), ((0,), ()))}))
    return cases


def _switches() -> list[Case]:
    shapes = ((24, 2, 100), (96, 2, 60000), (280, 3, 1 << 20), (280, 5, 1000), (512, 8, 1000))
    return [
        (kind(token_bits=bits, ways=ways, max_tokens=tokens), {"itensor": _bits(bits), "way": 1})
        for kind in (SelectParams, RouteParams)
        for bits, ways, tokens in shapes
    ]


def _row_takers() -> list[Case]:
    shapes = (("f24", 1, 100), ("f24", 4, 60000), ("mxi8s", 32, 1 << 20))
    return [
        (
            TakeRowsParams(dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "features": lanes, "first": 0, "count": 1},
        )
        for dtype, lanes, tokens in shapes
    ]


def _row_fitters() -> list[Case]:
    shapes = (("f24", 1, 1), ("f24", 1, 100), ("i8", 2, 5000), ("f24", 4, 60000), ("i8", 16, 1 << 12))
    return [
        (
            FitRowsParams(dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "features": lanes, "fitted": lanes},
        )
        for dtype, lanes, tokens in (*shapes, ("f24", 16, 1 << 20), ("mxi8s", 32, (1 << 32) - 1))
    ]


def _row_joiners() -> list[Case]:
    shapes = ((2, "f24", 1, 100), (2, "f24", 16, 60000), (3, "i8", 4, 5000), (5, "f24", 4, 1 << 20))
    return [
        (
            JoinRowsParams(ways=ways, dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "parts": (lanes,) * ways},
        )
        for ways, dtype, lanes, tokens in (*shapes, (8, "f24", 2, 4000))
    ]


def _segments() -> list[Case]:
    shapes = ((24, 2, 100), (48, 3, 60000), (280, 4, 1 << 20))
    return [
        (
            SegmentsParams(token_bits=bits, ways=ways, max_tokens=tokens),
            {"itensor": _bits(bits), "sizes": (1,) * (ways - 1) + (5 - ways,)},
        )
        for bits, ways, tokens in shapes
    ]


def _unzips() -> list[Case]:
    cases: list[Case] = []
    for ways, dtype, lanes, tokens in ((2, "f24", 1, 100), (2, "f24", 4, 60000), (3, "i8", 16, 1 << 20)):
        itensor = ITensor((1, ways * lanes), dtype, (4,), (1,), ((0,), ()))
        params = UnzipParams(ways=ways, dtype=dtype, lanes=lanes, max_tokens=tokens)
        cases.append((params, {"itensor": itensor}))
    return cases


def _kv_tiles() -> list[KvTilesParams]:
    found = []
    for dtype, width, heads, channels, positions, lanes, parts in (
        *(("i8", 40, 2, 1, 64, 1, 1), ("i8", 64, 3, 4, 512, 4, 1), ("i24", 3, 1, 4, 512, 4, 3)),
        *(("i8", 32, 4, 16, 1024, 4, 1), ("i24", 16, 1, 16, 1024, 8, 16), ("i8", 64, 2, 8, 1024, 8, 1)),
    ):
        layout = KvLayout(
            dtype=dtype, width=width, heads=heads, layers=30, positions=positions, channels=channels
        )
        found.append(KvTilesParams(layout=layout, lanes=lanes, parts=parts, max_new=16, max_again=48))
    return found


def _memory_kernels() -> list[Case]:
    cases: list[Case] = []
    rows = (("i8", 40, 2, 1, 64), ("i8", 64, 3, 4, 512), ("i8", 128, 8, 2, 8192), ("i24", 3, 1, 4, 512))
    for dtype, width, heads, channels, positions in (*rows, ("i8", 40, 2, 8, 100)):
        layout = KvLayout(
            dtype=dtype, width=width, heads=heads, layers=30, positions=positions, channels=channels
        )
        cases.append((KvStoreParams(layout=layout), {"layer": 0, "position": 0, "rows": 1}))
        for lanes in sorted({1, channels}):
            load = KvLoadParams(layout=layout, lanes=lanes, max_new=4, max_again=4 * heads)
            cases.append((load, {"layer": 0, "position": 0, "rows": 1, "again": 1}))
    for row, tile, vocabulary, ids in ((64, 4, 256, 4), (576, 4, 49152, 16), (2048, 16, 1 << 17, 512)):
        params = RowsLoadParams(shape=(row,), tile=(tile,), vocabulary=vocabulary, max_ids=ids)
        cases.append((params, {"ids": 1, "offset": 0}))
    return cases


def _spills() -> list[Case]:
    cases: list[Case] = []
    sizes = ((48, 128, 3), (24, 5, 1), (384, 40000, 31), (280, 1 << 16, 150), (16, 512, 9))
    for bits, tokens, values in sizes:
        spilled = SpillLayout(token_bits=bits, max_tokens=tokens, values=values)
        bounds = {"itensor": _bits(bits), "place": 0}
        cases += [(kind(layout=spilled), bounds) for kind in (SpillStoreParams, SpillLoadParams)]
    return cases


def _quantisers() -> list[Case]:
    shapes = [*((lanes, 576, sums) for lanes, sums in product(_LANES, (True, False)))]
    shapes += [(4, 32, True), (1, 1536, True), (16, 1024, True), (8, 12288, True), (32, 12288, False)]
    bounds = {"t": 1, "k": 32, "valid_k": 32}
    return [(QuantiseParams(lanes=lanes, max_k=k, sums=sums), bounds) for lanes, k, sums in shapes]


def _norms() -> list[NormParams]:
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


def _embeddings() -> list[EmbeddingParams]:
    return [
        EmbeddingParams(row_beats=beats, row_tokens=tokens, load_tokens=1 << 16, max_rows=rows, max_ids=ids)
        for beats, tokens, rows, ids in (
            (1, 1, 1000, 1),
            (6, 5, 49_152, 100),
            (36, 36, 49_152, 2048),
            (77, 300, 262_144, 1 << 20),
            (64, 64, 151_936, 4096),
        )
    ]


def _ropes() -> list[RopeParams]:
    shapes = [(1, 64, 64, False, 99), (2, 256, 256, False, 9999), (4, 128, 64, False, 1 << 20)]
    shapes += [(8, 64, 64, False, 999), (2, 64, 64, True, 9999), (8, 64, 32, True, 999)]
    return [
        RopeParams(lanes=lanes, dims=dims, rotated=rotated, interleaved=interleaved, max_heads=heads)
        for lanes, dims, rotated, interleaved, heads in shapes
    ]


_ROWS = ((1, 1, 1), (1, 64, 4096), (2, 64, 4096), (3, 96, 4096), (4, 64, 1 << 16), (8, 64, 1 << 16))
_ROWS = (*_ROWS, (8, 2048, 1 << 20), (16, 128, 1 << 20), (16, 12288, 1 << 20), (32, 64, 1 << 16))


def _row_quantisers() -> list[Case]:
    return [
        (QuantiseRowsParams(lanes=n, max_d=d, max_tokens=t), {"t": 1, "features": d, "d": d})
        for n, d, t in _ROWS
    ]


def _dequantisers() -> list[Case]:
    return [
        (
            DequantiseParams(lanes=n, scale_dtype=kind, max_d=d, max_tokens=t),
            {"t": 1, "features": d, "d": d},
        )
        for (n, d, t), kind in product(_ROWS[:-1:2], ("i24", "f24"))
    ]


def _caches() -> list[Case]:
    cases: list[Case] = []
    for dtype, width, heads, positions, channels in (
        ("i8", 64, 1, 16, 1),
        ("i8", 64, 3, 2048, 2),
        ("i8", 80, 4, 1024, 4),
        ("i8", 64, 8, 4096, 8),
        ("i24", 3, 1, 2048, 8),
        ("i8", 128, 8, 8192, 16),
        ("i8", 256, 1, 2048, 32),
    ):
        layout = KvLayout(
            dtype=dtype, width=width, heads=heads, layers=24, positions=positions, channels=channels
        )
        bounds = {"layer": 0, "position": 0, "rows": 1}
        cases += [(KvAppendParams(layout=layout), bounds), (KvReadParams(layout=layout), bounds)]
    return cases


def _softmax_blocks() -> list[Any]:
    rows = ((1, 40), (1, 2048), (3, 100), (16, 256), (32, 4096))
    return [
        *(MaskedRowsParams(lanes=lanes, max_length=length) for lanes, length in rows),
        *(ShareParams(p_bits=bits) for bits in (8, 12, 16)),
        ExponentialParams(),
        *(TermSumParams(lanes=n, bits=b, count=c) for n, b, c in ((1, 12, 100), (32, 16, 4096), (3, 40, 40))),
    ]


def _softmaxes() -> list[Any]:
    return [
        AttentionSoftmaxParams(lanes=1, max_length=40, p_bits=12),
        AttentionSoftmaxParams(lanes=3, max_length=300, p_bits=16),
        AttentionSoftmaxParams(lanes=8, max_length=2048, p_bits=8),
        SoftmaxParams(lanes=1, max_length=40),
        SoftmaxParams(lanes=4, max_length=1024),
    ]


def _attention_blocks() -> list[Any]:
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


def _attentions() -> list[Case]:
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


def _top_ks() -> list[Case]:
    shapes = ((1, 50, 1), (4, 49152, 1), (32, 262144, 1), (1, 64, 8), (8, 49152, 16), (3, 262144, 5))
    several = [TopKParams(lanes=n, max_length=length, max_k=k) for n, length, k in shapes]
    return [(params, {"rows": 1, "length": 8, "k": 1}) for params in several]


def _columns() -> list[ColumnParams]:
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


def _converters() -> list[LayoutParams]:
    """What matmuls need: panels that are used again, rows as tiles of tokens, other widths, other orders."""
    pairs = [
        *(
            (_tiles("i4", (4, 32), (6, k), (0, 1)), _tiles("i4", (4, 32), (6, 3, k), (0, None, 1)))
            for k in (6, 48)
        ),
        (_tiles("i8", (2, 1, 2), (5, 18), (0, 1)), _tiles("i8", (2, 1, 2), (5, 4, 18), (0, None, 1))),
        (_tiles("mxi8s", (1, 32), (16, 18), (0, 1)), _tiles("mxi8s", (4, 32), (12, 4, 18), (None, 0, 1))),
        (_tiles("i16", (1,), (16,), (0,)), _tiles("i16", (1,), (12, 16), (None, 0))),
        (_tiles("f24", (1, 1), (96, 16), (1, 0)), _tiles("f24", (1, 4), (16, 24), (0, 1))),
        (_tiles("f24", (1, 16), (8, 12), (0, 1)), _tiles("f24", (1, 4), (8, 48), (0, 1))),
        (_tiles("f24", (1, 12), (8, 16), (0, 1)), _tiles("f24", (1, 16), (8, 12), (0, 1))),
        (_tiles("u8", (1, 4), (64, 64), (0, 1)), _tiles("u8", (4, 1), (256, 16), (1, 0))),
    ]
    found: list[LayoutParams] = []
    for source, target in pairs:
        found += [PingPongParams(source=source, target=target), choose_converter(source, target)]
    return list(dict.fromkeys(found))


def _tiles(
    dtype: str, element: tuple[int, ...], trips: tuple[int, ...], dimensions: tuple[int | None, ...]
) -> ITensor:
    """Loops over whole tiles along dimensions; None sends them all again."""
    steps = tuple(1 if d is None else element[d] for d in dimensions)
    served = tuple(tuple(loop for loop, d in enumerate(dimensions) if d == r) for r in range(len(element)))
    return ITensor(element, dtype, trips, steps, served)


def _column_bounds(params: ColumnParams) -> Bounds:
    return {
        "t": params.t_lanes,
        "k": params.group,
        "n": params.n_lanes,
        "format": params.formats[0],
        "grouped": params.scale_bits > 0,
    }
