"""What is emitted: the manifest, the images and the Verilog tell of the same design."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from amaranth import Elaboratable

from streamgen.artifact.manifest import Manifest
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import Design, design, emit
from streamgen.compiler.plan.policy import finished, whole
from streamgen.contract.cost import Resources
from streamgen.gateware.rtl import Library
from streamgen.itensor import ITensor
from streamgen.model.graph import Program
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Binary, Linear, Unary
from tests.shared.accelerators import tiny

CONFIGS = {
    "w4, five tiles": CompileConfig(max_tokens=5, token_lanes=1, channels=3, prefetch_beats=64),
    "w8, two tiles": CompileConfig(max_tokens=8, token_lanes=4, channels=8, weights="w8"),
    "one channel": CompileConfig(max_tokens=1, channels=1, group=64, scale_bits=12, minimum=False),
}


def program(config: CompileConfig, hidden: int = 72, seed: int = 0) -> Program:
    """y = x + down(relu(up(x))), with the hidden values as a second output."""
    rng = np.random.default_rng(seed)
    up = Linear(rng.normal(size=(hidden, 40)).astype(np.float32), rng.normal(size=hidden).astype(np.float32))
    down = Linear(rng.normal(size=(40, hidden)).astype(np.float32))
    network = LogicalGraph(
        (Input("x", 40),),
        (
            Operation("up", up, ("x",)),
            Operation("hidden", Unary("relu"), ("up",)),
            Operation("down", down, ("hidden",)),
            Operation("y", Binary("add"), ("x", "down")),
        ),
        ("y", "hidden"),
    )
    network = network.quantised(config.numbers(False))
    return finished(whole(network, config), network, config.sizing)[0]


def emit_rest(made: Program, config: CompileConfig) -> Design:
    """A design without its Verilog, which takes most of the time."""

    def module(top: Elaboratable, name: str, library: Library) -> str:
        top._MustUse__silence = True  # amaranth warns of what is made and not elaborated
        return f"module {name}; endmodule"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(design, "to_verilog", module)
        return emit(made, budget_of(config), config.size("max_tokens"))


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def emitted(request: pytest.FixtureRequest) -> tuple[Program, CompileConfig, Design]:
    made = program(request.param)
    return made, request.param, emit_rest(made, request.param)


Emitted = tuple[Program, CompileConfig, Design]


def test_pins_of_the_verilog() -> None:
    """Of a real design: ports of the top are those of a Vitis RTL kernel, with a master for each channel."""
    accelerator = tiny()
    manifest = accelerator.manifest
    (group,) = accelerator.groups
    assert group.design is not None
    (header,) = re.findall(rf"^module {manifest.top}\((.*?)\);", group.design.verilog, re.M | re.S)
    pins = {name.strip() for name in header.split(",")}
    masters = {"_".join(pin.split("_")[:3]) for pin in pins if pin.startswith("m_axi")}
    assert masters == {port.name for port in manifest.ports} == {"m_axi_gmem0"}
    rest = {pin for pin in pins if not pin.startswith(("m_axi_gmem0_", "s_axi_control_"))}
    assert rest == {"ap_clk", "ap_rst_n", "interrupt"}
    for pin in (
        "araddr",
        "arlen",
        "arvalid",
        "arready",
        "rdata",
        "rlast",
        "awaddr",
        "wstrb",
        "wlast",
        "bresp",
    ):
        assert f"m_axi_gmem0_{pin}" in pins
    for pin in ("awaddr", "wdata", "wstrb", "bvalid", "araddr", "rdata", "rready"):
        assert f"s_axi_control_{pin}" in pins


def test_images_hold_the_constants(emitted: Emitted, tmp_path: Path) -> None:
    """Every constant at the offset of its load, and nothing else but the filling to whole beats."""
    made, _, emitted_design = emitted
    buffers = {buffer.name: buffer for buffer in emitted_design.manifest.buffers}
    emitted_design.write(tmp_path)
    images = {file.name: file.read_bytes() for file in tmp_path.glob("*.bin")}
    used = dict.fromkeys(images, 0)
    for tensor in made.graph.tensors:
        if tensor.role != "constant":
            continue
        name = f"weights_{tensor.channel}"
        assert buffers[name].channel == tensor.channel and buffers[name].file == f"{name}.bin"
        itensor = made.graph.tensor_itensor(tensor)
        layout = MemoryLayout.of(itensor)
        (bounds,) = made.graph.node(tensor.node).bounds
        first, size = bounds["offset"] * BEAT_BYTES, layout.beats(itensor.token_count) * BEAT_BYTES
        image = images[f"{name}.bin"]
        assert len(image) == buffers[name].bytes
        data = tensor.data[0] if isinstance(tensor.data, LateArray) else tensor.data
        assert np.array_equal(layout.unpack(itensor, image[first : first + size]), data)
        used[f"{name}.bin"] += size
    assert used == {name: len(image) for name, image in images.items()}
    written = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(written) == {"design.v", "manifest.json", *used}
    for name, size in written.items():
        assert f"{name}: {size:,} bytes" in str(emitted_design).splitlines()


def test_boundary_buffers_cover_every_run(emitted: Emitted) -> None:
    made, _, emitted_design = emitted
    buffers = {buffer.name: buffer for buffer in emitted_design.manifest.buffers}
    assert [b.name for b in emitted_design.manifest.buffers if b.role == "output"] == ["y", "hidden"]
    for name in ("x", "y", "hidden"):
        buffer = buffers[name]
        assert buffer.itensor is not None and buffer.tile_loop is not None
        one = ITensor.parse(buffer.itensor)
        for tiles in range(1, made.max_tiles + 1):
            graph = made.at(tiles)
            (tensor,) = [t for t in graph.tensors if t.name == name]
            trips = list(one.tripcounts)
            trips[buffer.tile_loop] *= tiles
            stream = replace(one, tripcounts=tuple(trips))
            assert stream == graph.tensor_itensor(tensor)
            assert MemoryLayout.of(stream).beats(stream.token_count) * BEAT_BYTES <= buffer.bytes
        assert buffer.shape is not None and buffer.shape[1:] == ((72,) if name == "hidden" else (40,))


def test_manifest(emitted: Emitted) -> None:
    made, config, emitted_design = emitted
    manifest = emitted_design.manifest
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert (manifest.top, manifest.max_tokens) == (config.name, config.size("max_tokens"))
    assert manifest.tokens_per_tile == made.token_lanes
    assert len(manifest.ports) <= config.size("channels")
    assert {port.channel for port in manifest.ports} >= {tensor.channel for tensor in made.graph.tensors}
    kinds = [(counter.name, counter.kind) for counter in manifest.counters]
    nodes, edges = made.graph.nodes, made.graph.edges
    assert kinds == [(n.name, k) for n in nodes for k in ("busy", "stalled")] + [
        (e.name, "level") for e in edges
    ]
    assert [c.depth for c in manifest.counters[2 * len(nodes) :]] == [edge.depth for edge in edges]
    sizes = {buffer.role: buffer.bytes for buffer in manifest.buffers}
    assert sizes["table"] == len(manifest.program.pack())
    assert sizes["status"] == manifest.status_bytes


def test_resources_of_all_blocks(emitted: Emitted) -> None:
    made, _, emitted_design = emitted
    parts = emitted_design.resources
    kinds = {type(node.params).__name__.removesuffix("Params") for node in made.graph.nodes}
    assert set(parts) == {*kinds, "FIFOs", "control and masters"}
    costs = [node.params.cost(node.bounds[0]).resources for node in made.graph.nodes]
    total = sum(parts.values(), Resources(lut=0, ff=0))
    around = parts["FIFOs"] + parts["control and masters"]
    nodes = sum(costs, Resources(lut=0, ff=0))
    assert total.lut == pytest.approx(nodes.lut + around.lut) and total.dsp >= nodes.dsp > 0
    assert around.lut > 0 and parts["control and masters"].ff > 0


def test_the_hash_names_the_hardware() -> None:
    """Equal for other weights; another for another wired field, name, format or FIFO depth."""
    config = CONFIGS["one channel"]

    def digest(made: Program, with_config: CompileConfig = config) -> str:
        return emit_rest(made, with_config).manifest.design_hash

    base = program(config)
    assert digest(base) == digest(program(config)) == digest(program(config, seed=1))
    graph = base.graph
    edges = (replace(graph.edges[0], depth=(graph.edges[0].depth or 0) + 1), *graph.edges[1:])
    others = [
        digest(program(config, hidden=71)),  # the same padding: only a field of the quantiser differs
        digest(base, replace(config, name="other")),
        digest(program(replace(config, scale_bits=13))),
        digest(Program(replace(graph, edges=edges))),
    ]
    assert len({digest(base), *others}) == 5
