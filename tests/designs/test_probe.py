"""Probes on the written Verilog: silent when all is right, and at the right place when it is not."""

import re
from pathlib import Path

import numpy as np
import pytest

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import DeviceError, DeviceTimeoutError, ProbeError, StreamgenError
from streamgen.model.graph import Graph
from streamgen.runtime.memory import MemoryModel
from tests.shared.accelerators import by_hand, same, tiny, values
from tests.shared.campaigns import sampled
from tests.shared.verilog_faults import flip_operator

STORE = "linear_column0.o_y -> store_linear.i"
SILENT_AT_MOST = 8  # flips in a row that change nothing; three in five change something


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture(scope="module")
def loaded(written: Path) -> Accelerator:
    return streamgen.load(written)


def tokens(graph: Graph) -> int:
    """Tokens of a run on all edges."""
    return sum(graph.itensor(edge, 0).token_count for edge in graph.edges)


def test_nothing_differs(loaded: Accelerator) -> None:
    x = values(3, 40)
    assert same(loaded.run(x, probe=True), tiny().golden(x))
    count = 3 * tokens(loaded.graph)
    assert str(loaded.probed) == f"{count} tokens on 9 edges in 3 runs: no difference from the golden model"
    assert loaded.probed.difference is None
    assert same(loaded.run(x, probe=True, memory=MemoryModel(delays=40, seed=3)), tiny().golden(x))
    assert loaded.probed.tokens == count
    assert loaded.run(values(0, 40), probe=True).shape == (0, 5)
    assert (loaded.probed.runs, loaded.probed.tokens) == (0, 0)


def test_a_weight_that_is_not_golden_s(written: Path) -> None:
    """The load is named, with the very weight; the next run starts afresh."""
    loaded = streamgen.load(written, changed_files=True)
    graph = loaded.graph
    (weights,) = [t for t in graph.tensors if t.name.endswith("_weights_0")]
    itensor = graph.tensor_itensor(weights)
    file = written / f"weights_{weights.channel}.bin"
    image = file.read_bytes()
    (bounds,) = graph.node(weights.node).bounds
    place = 64 * bounds["offset"] + 64 * 3 + 6  # beat 3, byte 6
    file.write_bytes(image[:place] + bytes([image[place] ^ 1]) + image[place + 1 :])
    try:
        with pytest.raises(ProbeError) as error:
            loaded.run(values(1, 40), probe=True)
    finally:
        file.write_bytes(image)
    found = loaded.probed.difference
    assert found is not None and found.node == weights.node and (found.token, found.run) == (3, 1)
    element = tuple(int(i) for i in itensor.offsets()[3] + np.array([0, 6]))
    assert found.element == element
    assert int(found.expected) == weights.data[element] and int(found.seen) == int(found.expected) ^ 1
    assert str(error.value) == str(loaded.probed)
    assert str(error.value).endswith("tokens on 9 edges were right before")
    x = values(2, 40)
    assert same(loaded.run(x, probe=True), tiny().golden(x))


def test_unknown_edge(loaded: Accelerator) -> None:
    with pytest.raises(ValueError) as error:
        loaded.run(values(1, 40), probe=["column0.o_y -> store"])
    assert str(error.value) == (f"no edge is called 'column0.o_y -> store'; the nearest name is {STORE!r}")


@pytest.mark.slow
def test_some_edges(loaded: Accelerator) -> None:
    x = values(2, 40)
    assert same(loaded.run(x, probe=[STORE]), tiny().golden(x))
    assert (loaded.probed.edges, loaded.probed.runs) == (1, 2)
    assert same(loaded.run(x), tiny().golden(x)) and loaded.probed is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", sampled(range(6), range(2)))
@pytest.mark.parametrize("design", ["matmul", "elementwise"])
def test_flipped_operator(design: str, number: int, seed: int, tmp_path: Path) -> None:
    """Of random kernels: the probe names an output edge of one that holds the operator, or the memory that it
    writes; what it does not see changes no result. A load or a store may also break a law of the memory.
    One that waits for ever is at the memory, or the error names an edge of it."""
    make, shapes = {"matmul": (tiny, [(2, 40)]), "elementwise": (by_hand, [(2, 30), (2, 32)])}[design]
    accelerator = streamgen.load(make().write(tmp_path / "written"), changed_files=True)
    file = tmp_path / "written" / "design.v"
    text = file.read_text()
    inputs = [values(*shape, seed=seed) for shape in shapes]
    golden = accelerator.golden(*inputs)
    rng = np.random.default_rng([seed, number])
    for _ in range(SILENT_AT_MOST):
        changed, nodes, line = flip_operator(text, accelerator.graph, rng)
        file.write_text(changed)
        try:
            result = accelerator.run(*inputs, probe=True)
        except ProbeError:
            found = accelerator.probed.difference
            assert found.node in nodes, f"{line}\n{found}"
            place = found.place
            outputs = [e.name for n in nodes for e in accelerator.graph.outputs_of(n)]
            stores = [e.name for n in nodes for e in accelerator.graph.inputs_of(n)]
            tensors = [t.name for t in accelerator.graph.tensors if t.node in nodes]
            assert place in (outputs or stores) or (found.kind == "output" and place in tensors), line
            return
        except DeviceError as error:
            channels = {t.channel for t in accelerator.graph.tensors if t.node in nodes}
            if isinstance(error, DeviceTimeoutError):
                ends = (accelerator.graph.inputs_of, accelerator.graph.outputs_of)
                edges = [e.name for n in nodes for of in ends for e in of(n)]
                assert "no token and no beat moved any more" in str(error), f"{line}\n{error}"
                assert channels or any(name in str(error) for name in edges), f"{line}\n{error}"
                return
            port = re.search(r"m_axi_gmem(\d+)", str(error))
            assert port and int(port[1]) in channels, f"{line}\n{error}"
            return
        assert same(result, golden), line
    pytest.fail(f"{SILENT_AT_MOST} flips in a row changed nothing")


@pytest.mark.slow
def test_fifo_that_changes_a_token(tmp_path: Path) -> None:
    """What goes in is right, what comes out is not."""
    accelerator = streamgen.load(tiny().write(tmp_path / "written"), changed_files=True)
    file = tmp_path / "written" / "design.v"
    text = file.read_text()
    instance = next(s.instance for s in accelerator.manifest.streams if s.name == STORE)
    (module,) = re.findall(rf"^  (\w+) {instance} \($", text, re.MULTILINE)
    start = text.index(f"\nmodule {module}(")
    end = text.index("\nendmodule", start)
    body, changes = re.subn(r"(?m)^(    .*\bo__payload <= )([^;]*);", r"\1\2 ^ 24'h000100;", text[start:end])
    assert changes == 1
    file.write_text(text[:start] + body + text[end:])
    with pytest.raises(ProbeError, match="the token entered the FIFO of this edge correctly"):
        accelerator.run(values(1, 40), probe=True)
    found = accelerator.probed.difference
    assert (found.place, found.node, found.token) == (STORE, None, 0)


@pytest.mark.slow
def test_verilog_without_the_fifo(tmp_path: Path) -> None:
    accelerator = streamgen.load(tiny().write(tmp_path / "written"), changed_files=True)
    file = tmp_path / "written" / "design.v"
    file.write_text(re.sub(r"\bfifo_3\b", "renamed", file.read_text()))
    with pytest.raises(StreamgenError) as error:
        accelerator.run(values(1, 40), probe=True)
    assert str(error.value) == "the Verilog of 'tiny' has no instance 'fifo_3' to probe"
