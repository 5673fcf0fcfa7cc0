"""Tables whose rows lie in parts, on the Verilog: on channels that begin beyond 2^32, and of a network."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from streamgen.artifact.written import MANIFEST, sealed
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import emit
from streamgen.compiler.lower import GraphBuilder, finish
from streamgen.compiler.schedule.channels import on_channels
from streamgen.contract.cost import Resources
from streamgen.itensor import ITensor
from streamgen.kernels.memory import RowsLoadParams
from streamgen.model import golden
from streamgen.model.graph import Graph, Port, Program
from streamgen.numbers.formats import round_f24
from streamgen.package.link import link_config
from streamgen.package.linkage import LinkedKernel, linked
from streamgen.platform.boards import board_of
from streamgen.runtime.arrays import packed, unpacked
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel

MOST, VOCABULARY = 5, 40
U55C = board_of("u55c")
MEMORY = U55C.channel()._asdict()


def _load(shape: tuple[int, ...], tile: tuple[int, ...], dtype: str) -> RowsLoadParams:
    return RowsLoadParams(
        shape=shape, tile=tile, vocabulary=VOCABULARY, max_ids=MOST, dtype=dtype, prefetch=32, **MEMORY
    )


LOADS = {
    "wide": _load((120,), (8,), "f24"),  # 15 tokens in 8 beats
    "codes": _load((200,), (40,), "i8"),  # 5 tokens in 5 beats
    "short": _load((24,), (4,), "f24"),  # 6 tokens in 2 beats
    "turns": _load((2, 36), (2, 4), "f24"),  # cosines and sines: 9 tokens in 5 beats
}
PLACES = {
    ("constant", "wide"): ((9, 1), (31, 2), (10, 5)),
    ("constant", "codes"): ((31, 2), (9, 3)),
    ("constant", "short"): ((10, 1), (31, 1)),
    ("constant", "turns"): ((9, 2), (10, 1), (31, 2)),
}


def _table(params: RowsLoadParams) -> np.ndarray:
    rng = np.random.default_rng(7)
    shape = (VOCABULARY + 1, *params.stored)
    if params.dtype == "i8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return round_f24(rng.normal(size=shape))


TABLES = {name: _table(params) for name, params in LOADS.items()}


def _whole(tiles: int, position: int = 0) -> Graph:
    """Rows of the tables, by one stream of ids."""
    ids, most = (ITensor((1,), "u32", (count,), (1,), ((0,),)) for count in (tiles, MOST))
    b = GraphBuilder("tables")
    numbers = b.load("ids", ids, shape=(tiles,), channel=0, largest=most)
    for name, params in LOADS.items():
        rows = b.kernel(name, params, {"ids": tiles, "offset": 0}, i=numbers)["o"]
        table, place = TABLES[name], Port(name, "memory")
        order = params.table
        b.tensor(
            f"{name}_table",
            "constant",
            place,
            shape=table.shape,
            channel=1,
            itensor=order,
            data=table,
            own=True,
        )
        largest = params.outputs({"ids": MOST})["o"]
        b.store(f"{name}_rows", rows, shape=(tiles, *params.shape), channel=0, largest=largest)
    return b.build()


def _parts(tiles: int, position: int = 0) -> Graph:
    return on_channels(_whole(tiles), PLACES)


@pytest.fixture(scope="module")
def program() -> Program:
    return finish(_parts, 1, MOST)[0]


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    config = CompileConfig(name="tables", max_tokens=MOST, channels=32)
    design = emit(program, budget_of(config), max_tokens=MOST)
    design.write(place)
    (place / MANIFEST).write_text(sealed(design.manifest, place).to_json())
    return place


@pytest.fixture(scope="module")
def execution(folder: Path) -> Iterator[Execution]:
    with Execution(folder) as opened:
        yield opened


def _check(execution: Execution, ids: list[int]) -> None:
    """Rows from the hardware are those of the whole tables."""
    (given,) = execution.buffers("input")
    numbers = np.array(ids, np.uint32)
    images = execution.transfer({"ids": packed(given, numbers, len(ids))}, len(ids), 60)
    expected, _ = golden.run(_whole(len(ids)), {"ids": numbers})
    infos = {info.name: info for info in execution.buffers("output")}
    for name, params in LOADS.items():
        found = unpacked(infos[f"{name}_rows"], images[f"{name}_rows"], len(ids))
        np.testing.assert_array_equal(found.reshape(len(ids), *params.shape), expected[f"{name}_rows"])


def test_golden_rows_are_those_of_whole_tables(program: Program) -> None:
    ids = np.array([0, VOCABULARY - 1, VOCABULARY, 2**32 - 1, 0], np.uint32)
    expected, _ = golden.run(_whole(MOST), {"ids": ids})
    found, _ = golden.run(program.at(MOST), {"ids": ids})
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_the_parts_take_the_bytes_of_the_tables(folder: Path) -> None:
    """Each row begins with a beat of its own, in each part."""
    held = {b.channel: b.bytes for b in Execution(folder).manifest.buffers if b.role == "weights"}
    beats = {9: 1 + 3 + 2, 10: 5 + 1 + 1, 31: 2 + 2 + 1 + 2}
    assert held == {channel: 64 * (VOCABULARY + 1) * count for channel, count in beats.items()}


def test_a_package_links_the_banks_of_the_parts(folder: Path) -> None:
    manifest, slr = Execution(folder).manifest, {"SLR0": Resources(lut=1, ff=1)}
    part = LinkedKernel(
        folder="tables", manifest=manifest, board=U55C, slrs=slr, instances={}, wires=(0, 0), meets={}
    )
    card = linked("tables", ["tables"], [part])
    (kernel,) = card.kernels
    banks = {b.name: b.channel for b in manifest.buffers if b.role == "weights"}
    assert set(banks.values()) == {9, 10, 31} and banks.items() <= kernel.banks.items()
    lines = link_config(card, [manifest], U55C).splitlines()
    for bank in (9, 10, 31):
        assert f"sp={kernel.unit}.m_axi_gmem{bank}:HBM[{bank}]" in lines


@pytest.mark.slow
def test_first_and_last_and_unknown_ids(execution: Execution) -> None:
    for ids in ([0], [VOCABULARY - 1], [VOCABULARY], [2**32 - 1], [0, 2**31, VOCABULARY - 1, 0, 17]):
        _check(execution, ids)


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [1, 60, 120, 150, 180, 210, 240, 300])
def test_reset_in_mid_run(execution: Execution, cycles: int) -> None:
    _check(execution, [3, 2, 1])
    execution.device.start()
    execution.device.run(cycles)
    execution.device.reset()
    _check(execution, [VOCABULARY - 1, 0, 5, 5])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_memory_answers_when_it_likes(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with Execution(folder, memory=MemoryModel(delays=20 + 40 * seed, seed=seed)) as execution:
        for _ in range(4):
            _check(execution, rng.integers(0, VOCABULARY + 2, rng.integers(1, MOST + 1)).tolist())


class _Category(nn.Module):
    """A category for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(300, 64), nn.Linear(64, 3)

    def forward(self, kind: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(kind))


@pytest.mark.slow
def test_a_network_without_an_engine(tmp_path: Path) -> None:
    """Half of its table lies on a channel that nothing else uses; a loaded folder runs, with its golden
    model."""
    small = replace(U55C, name="small", hbm=replace(U55C.hbm, channel_bytes=11 * 4096))
    config = streamgen.CompileConfig(
        name="category", max_tokens=4, channels=3, multipliers=32, policy="spatial", board=small,
        weights="w8", formats={"embedding": "f24"},
    )  # fmt: skip
    ids = torch.randint(300, (6,), generator=torch.Generator().manual_seed(1))
    ids[0], ids[-1] = 0, 299
    torch.manual_seed(0)
    module = _Category().eval()
    made = streamgen.compile(module, ids[:2], config)
    (group,) = made.groups
    parts = {t.node: t.channel for t in group.program.graph.tensors if t.node.startswith("embedding")}
    assert parts == {"embedding_part_0": 0, "embedding_part_1": 2}
    made.write(tmp_path / "written")
    loaded = streamgen.load(tmp_path / "written")
    try:
        found = loaded.run(ids.numpy())
    finally:
        loaded.close()
    expected, again = made.golden(ids.numpy()), loaded.golden(ids.numpy())
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(again, expected)
    np.testing.assert_allclose(expected, module(ids).detach().numpy(), atol=0.05)
