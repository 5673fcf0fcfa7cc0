"""Kernels with several memory ports in written designs: a KV cache that runs leave to one another."""

from pathlib import Path

import numpy as np

from streamgen.config import CompileConfig
from streamgen.emit import emit
from streamgen.graph import Graph, Port, Program
from streamgen.itensor import ITensor
from streamgen.kv_layout import KvLayout
from streamgen.lower import GraphBuilder
from streamgen.memory import KvLoadParams, KvStoreParams, RowsLoadParams
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel

WALKS, CONTEXT, MOST, HEADS, WIDTH = 3, 13, 4, 2, 40
LAYOUT = KvLayout(dtype="i8", width=WIDTH, heads=HEADS, layers=WALKS, positions=CONTEXT, channels=2)
TABLE = RowsLoadParams(row=96, lanes=16, vocabulary=50, max_ids=MOST, dtype="i16")


def _rows(tokens: int, width: int, dtype: str) -> ITensor:
    return ITensor((1, width), dtype, (tokens, 1), (1, width), ((0,), (1,)))


def _cached(tiles: int, position: int) -> Graph:
    """Each walk appends rows of its own to its layer of the cache, and reads all that are there."""
    b = GraphBuilder("cached", walks=(WALKS,))
    width = HEADS * WIDTH
    data = np.random.default_rng(0).integers(-128, 128, (WALKS, MOST, width)).astype(np.int8)
    order = _rows(tiles, width, "i8")
    x = b.load("x", order, shape=(tiles, width), channel=0, largest=_rows(MOST, width, "i8"))
    constant = b.load("c", _rows(MOST, width, "i8"), shape=(MOST, width), channel=1, data=data)
    rows = {"layer": 0, "position": position, "rows": tiles}
    appended = b.kernel("append", KvStoreParams(layout=LAYOUT), rows, steps={"layer": 1}, i=x)
    read = {"layer": 0, "rows": position + tiles, "waits": 1}
    loaded = b.kernel(
        "read", KvLoadParams(layout=LAYOUT), read, steps={"layer": 1}, i_appended=appended["o_appended"]
    )
    for node in ("append", "read"):
        for c in range(LAYOUT.channels):
            b.tensor(
                f"{node}_{c}",
                "state",
                Port(node, f"memory_{c}"),
                shape=LAYOUT.order.shape,
                channel=c,
                itensor=LAYOUT.order,
                own=True,
                buffer=f"cache_{c}",
            )
    b.store("y", loaded["o"], shape=(position + tiles, width), channel=1)
    b.store("z", constant, shape=(MOST, width), channel=0)
    return b.build()


class Written:
    """A program on the simulated device."""

    def __init__(self, program: Program, folder: Path, memory: MemoryModel | None = None) -> None:
        self.program = program
        config = CompileConfig(name=program.graph.name)
        for name, content in emit(program, config, max_tokens=program.max_tiles).files().items():
            (folder / name).write_bytes(content)
        self.execution = Execution(folder, memory=memory)
