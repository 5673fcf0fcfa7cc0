"""Kernels with memory ports: the KV cache, rows of a table, spilled values."""

from sim.blocks.cases import Case, stream_of_bits
from sim.memory import MEMORY
from streamgen.artifact.kv_layout import KvLayout
from streamgen.kernels.attention.kv_cache import KvAppendParams, KvReadParams
from streamgen.kernels.memory import (
    KvLoadParams,
    KvStoreParams,
    RowsLoadParams,
    SpillLayout,
    SpillLoadParams,
    SpillStoreParams,
)
from streamgen.kernels.memory.kv_tiles import KvTilesParams

__all__ = ["caches", "kv_tiles", "memory_kernels", "spills"]


def caches() -> list[Case]:
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
        for pieces in sorted({1, 2 - heads % 2}):
            cases.append((KvAppendParams(layout=layout, pieces=pieces), bounds))
        cases.append((KvReadParams(layout=layout), bounds))
    return cases


def memory_kernels() -> list[Case]:
    cases: list[Case] = []
    rows = (("i8", 40, 2, 1, 64), ("i8", 64, 3, 4, 512), ("i8", 128, 8, 2, 8192), ("i24", 3, 1, 4, 512))
    for dtype, width, heads, channels, positions in (*rows, ("i8", 40, 2, 8, 100)):
        layout = KvLayout(
            dtype=dtype, width=width, heads=heads, layers=30, positions=positions, channels=channels
        )
        cases.append((KvStoreParams(layout=layout, **MEMORY), {"layer": 0, "position": 0, "rows": 1}))
        for lanes in sorted({1, channels}):
            load = KvLoadParams(layout=layout, lanes=lanes, max_new=4, max_again=4 * heads, **MEMORY)
            cases.append((load, {"layer": 0, "position": 0, "rows": 1, "again": 1}))
    for row, tile, vocabulary, ids in ((64, 4, 256, 4), (576, 4, 49152, 16), (2048, 16, 1 << 17, 512)):
        params = RowsLoadParams(shape=(row,), tile=(tile,), vocabulary=vocabulary, max_ids=ids, **MEMORY)
        cases.append((params, {"ids": 1, "offset": 0}))
    return cases


def kv_tiles() -> list[KvTilesParams]:
    found = []
    for dtype, width, heads, channels, positions, lanes, parts, pieces in (
        *(("i8", 40, 2, 1, 64, 1, 1, 1), ("i8", 64, 3, 4, 512, 4, 1, 1), ("i24", 3, 1, 4, 512, 4, 3, 1)),
        *(("i8", 32, 4, 16, 1024, 4, 1, 2), ("i24", 16, 1, 16, 1024, 8, 16, 1)),
        *(("i24", 16, 1, 16, 1024, 8, 16, 4), ("i8", 64, 2, 8, 1024, 8, 1, 1)),
    ):
        layout = KvLayout(
            dtype=dtype, width=width, heads=heads, layers=30, positions=positions, channels=channels
        )
        found.append(
            KvTilesParams(layout=layout, lanes=lanes, parts=parts, pieces=pieces, max_new=16, max_again=48)
        )
    return found


def spills() -> list[Case]:
    cases: list[Case] = []
    sizes = ((48, 128, 3), (24, 5, 1), (384, 40000, 31), (280, 1 << 16, 150), (16, 512, 9))
    for bits, tokens, values in sizes:
        spilled = SpillLayout(token_bits=bits, max_tokens=tokens, values=values)
        bounds = {"itensor": stream_of_bits(bits), "place": 0}
        cases += [(kind(layout=spilled, **MEMORY), bounds) for kind in (SpillStoreParams, SpillLoadParams)]
    return cases
