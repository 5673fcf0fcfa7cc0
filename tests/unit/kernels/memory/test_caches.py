"""Kernels with memory ports in written designs: rows by number, a KV cache that runs leave to one another."""

from pathlib import Path

import numpy as np
import pytest

from sim.memory import MEMORY
from streamgen.artifact.kv_layout import KvLayout
from streamgen.artifact.written import MANIFEST, sealed
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import emit
from streamgen.compiler.lower import GraphBuilder, finish
from streamgen.itensor import ITensor
from streamgen.kernels.memory import KvLoadParams, KvStoreParams, RowsLoadParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model import golden
from streamgen.model.graph import Graph, Port, Program
from streamgen.runtime.arrays import packed, unpacked
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel

LAYERS, CONTEXT, MOST, HEADS, WIDTH = 3, 13, 4, 2, 40
LAYOUT = KvLayout(dtype="i8", width=WIDTH, heads=HEADS, layers=LAYERS, positions=CONTEXT, channels=2)
TABLE = RowsLoadParams(
    shape=(HEADS * WIDTH,), tile=(WIDTH,), vocabulary=50, max_ids=MOST, dtype="i8", **MEMORY
)

ROWS = np.random.default_rng(0).integers(-128, 128, (51, HEADS * WIDTH)).astype(np.int8)


def _ids(tokens: int) -> ITensor:
    return ITensor((1,), "u32", (tokens,), (1,), ((0,),))


def _rows(tokens: int) -> ITensor:
    return ITensor((1, WIDTH), "i8", (tokens, HEADS), (1, WIDTH), ((0,), (1,)))


def _graph(tiles: int, position: int) -> Graph:
    """Rows of a table are appended to a cache, in each walk to the next layer; two pieces of what is there
    then are read: the first rows and the last."""
    b = GraphBuilder("cached", sections=((1, LAYERS),))
    ids = b.load("ids", _ids(tiles), shape=(tiles,), channel=0, largest=_ids(MOST))
    rows = b.kernel("rows", TABLE, {"ids": tiles, "offset": 0}, i=ids)["o"]
    place = Port("rows", "memory")
    order = TABLE.table
    b.tensor("table", "constant", place, shape=ROWS.shape, channel=1, itensor=order, data=ROWS, own=True)
    bounds = {"layer": 0, "position": position, "rows": tiles}
    b.kernel("append", KvStoreParams(layout=LAYOUT, **MEMORY), bounds, i=rows)
    load = KvLoadParams(layout=LAYOUT, max_new=MOST, **MEMORY)
    found = b.kernel("read", load, {**bounds, "again": 1}, i=rows)["o"]
    for node in ("append", "read"):
        b.grow(node, layer=1)
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
    for name, first in (("head", 0), ("tail", position)):
        params = TakeRowsParams(dtype="i8", lanes=WIDTH, max_tokens=CONTEXT * HEADS)
        bounds = {"rows": position + tiles, "features": HEADS * WIDTH, "first": first, "count": tiles}
        taken = b.kernel(f"take_{name}", params, bounds, i=found)["o"]
        b.store(name, taken, shape=(tiles, HEADS * WIDTH), channel=1, largest=_rows(MOST))
    return b.build()


@pytest.fixture(scope="module")
def program() -> Program:
    return finish(_graph, 1, MOST, context=CONTEXT)[0]


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cached")
    config = CompileConfig(name="cached", max_tokens=MOST)
    design = emit(program, budget_of(config), max_tokens=MOST)
    design.write(place)
    (place / MANIFEST).write_text(sealed(design.manifest, place).to_json())
    return place


def _run(execution: Execution, ids: np.ndarray, position: int) -> dict[str, np.ndarray]:
    """A run of the hardware."""
    (given,) = execution.buffers("input")
    images = execution.transfer({"ids": packed(given, ids, len(ids))}, len(ids), 60, position)
    return {info.name: unpacked(info, images[info.name], len(ids)) for info in execution.buffers("output")}


@pytest.mark.slow
def test_the_table_has_a_section_for_its_walks(folder: Path) -> None:
    (section,) = Execution(folder).manifest.program.sections
    assert section.repeats == LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_runs_read_what_runs_before_have_left(program: Program, folder: Path, seed: int) -> None:
    """Texts in random passes; memory answers when it likes. Unknown ids read the row behind the table."""
    rng = np.random.default_rng(seed)
    with Execution(folder, memory=MemoryModel(delays=50 * seed, seed=seed)) as execution:
        for _ in range(2):
            execution.forget()
            state: dict[str, np.ndarray] = {}
            position = 0
            while position < CONTEXT:
                count = rng.integers(1, min(MOST, CONTEXT - position) + 1)
                ids = rng.integers(0, 52, count).astype(np.uint32)
                expected, _ = golden.run(program.at(len(ids), position), {"ids": ids}, state)
                found = _run(execution, ids, position)
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[name], array)
                position += len(ids)


def test_positions_outside_the_context(program: Program) -> None:
    assert program.last_position(MOST) == CONTEXT - MOST
    with pytest.raises(ValueError, match=r"^position is 10; 0 to 9 are allowed for 4 token tiles$"):
        program.at(MOST, 10)
