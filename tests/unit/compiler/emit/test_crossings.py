"""A design on three SLRs: registers wherever something crosses, the same bits, computed cycles."""

import re
from dataclasses import replace
from functools import cache, reduce
from operator import add
from pathlib import Path

import pytest
import torch

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit.outline import outline
from streamgen.compiler.emit.resources import blocks
from streamgen.fifo.crossing import CrossingParams
from streamgen.platform.boards import Board, Slr, board_of
from tests.shared.accelerators import Gated, same, values
from tests.shared.decoders import TINY, tiny_decoder

U55C = board_of("u55c")


def squeezed(accelerator: Accelerator, config: CompileConfig) -> Board:
    """A board on whose first SLR there is room for what hangs on the memory and little else, and on the
    others for half of the rest each."""
    parts = blocks(outline(accelerator.groups[0].program, budget_of(config)).top)
    total, fixed = (sum(b.resources.lut for b in some) for some in (parts, [b for b in parts if b.fixed]))
    rest = total - fixed
    luts = (fixed + 0.1 * rest, 0.6 * rest, 0.6 * rest)
    slrs = [
        Slr(name=f"SLR{k}", resources=replace(U55C.slrs[0].resources, lut=lut)) for k, lut in enumerate(luts)
    ]
    return replace(U55C, name="squeezed", slrs=tuple(slrs), fill=1.0)


@cache
def spread() -> tuple[Accelerator, Accelerator]:
    """The same module on one SLR and on three."""
    torch.manual_seed(0)
    module, x = Gated().eval(), torch.zeros(4, 33)
    config = CompileConfig(name="spread", max_tokens=4, multipliers=384, channels=2)
    whole = streamgen.compile(module, x, config)
    return whole, streamgen.compile(module, x, replace(config, board=squeezed(whole, config)))


@pytest.mark.slow
def test_every_stream_between_slrs_is_a_crossing() -> None:
    (group,) = spread()[1].groups
    assert group.design is not None
    slrs, order = group.program.regions.slrs, ("SLR0", "SLR1", "SLR2")
    found = set()
    for k, edge in enumerate(group.graph.edges):
        distance = abs(order.index(slrs[edge.source.node]) - order.index(slrs[edge.target.node]))
        assert edge.boundaries == distance
        found.add(distance)
        sender = next(s for s in group.design.manifest.streams if s.name == edge.name).sender
        assert sender == (f"fifo_{k}_sender" if distance else None)
    assert found == {0, 1, 2}
    assert group.notes.crossings == {e.name: e.boundaries for e in group.graph.edges if e.boundaries}


@pytest.mark.slow
def test_no_wire_between_slrs_comes_from_logic_or_goes_into_it() -> None:
    """All that joins instances of different SLRs are outputs and inputs of crossings and watchers."""
    (group,) = spread()[1].groups
    assert group.design is not None
    text, slrs = group.design.verilog, group.design.instances
    (top,) = re.findall(r"^module spread\(.*?^endmodule", text, re.MULTILINE | re.DOTALL)
    drivers: dict[str, set[str]] = {}
    for module, name, pins in re.findall(r"^  (\w+) (\w+) \(\n(.*?)\n  \);", top, re.MULTILINE | re.DOTALL):
        for wire in re.findall(r"\.\w+\((\w+)", pins):
            drivers.setdefault(wire, set()).add(name)
        assert name in slrs, module
    ends = re.compile(r"(fifo_\d+|words_SLR\d)(_sender|_relay_SLR\d)?$|watch_SLR\d_SLR\d$")
    for wire, names in drivers.items():
        if wire in ("ap_clk", "clk") or len({slrs[name] for name in names}) < 2:
            continue
        assert all(ends.match(name) for name in names), (wire, names)


@pytest.mark.campaign
@pytest.mark.slow
def test_bits_cycles_and_instruments() -> None:
    whole, parts = spread()
    x = values(4, 33)
    assert same(parts.run(x, probe=True), whole.golden(x))
    assert parts.probed is not None and parts.probed.difference is None
    report = parts.profile(x)
    (seen,) = report.passes
    # predictions know nothing of the way of descriptors to other SLRs: a fan-out, and a crossing
    assert 0 <= seen.cycles - parts.predict(4) <= 1 + 4 + 1
    assert seen.cycles < 1.05 * whole.predict(4)


@pytest.mark.campaign
@pytest.mark.slow
def test_a_written_design_is_the_same(tmp_path: Path) -> None:
    _, parts = spread()
    loaded = streamgen.load(parts.write(tmp_path / "spread"))
    assert loaded.groups[0].graph.edges == parts.groups[0].graph.edges
    assert loaded.predict(4) == parts.predict(4)
    x = values(3, 33)
    assert same(loaded.run(x), parts.golden(x))


@pytest.mark.campaign
@pytest.mark.slow
def test_a_language_model(tmp_path: Path) -> None:
    """Of several phases, with back edges, a cache and walks, over three SLRs; read again from its folder."""
    config = TINY
    model = tiny_decoder()
    whole = streamgen.compile(model, config=config)
    board = squeezed(whole, config)
    parts = streamgen.compile(model, config=replace(config, board=board))
    assert len(set(parts.groups[0].program.regions.slrs.values())) == 3
    ids = [1, 2, 3]
    expected = list(whole.golden.generate(ids, 3))
    assert list(parts.generate(ids, 3)) == expected
    loaded = streamgen.load(parts.write(tmp_path / "text"))
    assert loaded.groups[0].graph.edges == parts.groups[0].graph.edges
    assert loaded.predict(1, 2) == parts.predict(1, 2)


@pytest.mark.slow
def test_too_few_wires_between_slrs() -> None:
    _, parts = spread()
    config = CompileConfig(name="wired", max_tokens=4, multipliers=384, channels=2)
    design = parts.groups[0].design
    assert design is not None
    few = int(0.6 * max(design.placement.wires))
    board = replace(design.board, wires=few, wires_fill=1.0)
    said = rf"wires that cross SLRs: [\d,]+ between SLR0 and SLR1.*; at most {few:,} may cross"
    with pytest.raises(BudgetError, match=said):
        torch.manual_seed(0)
        streamgen.compile(Gated().eval(), torch.zeros(4, 33), replace(config, board=board))


@pytest.mark.slow
def test_what_crosses_is_in_the_resources() -> None:
    (group,) = spread()[1].groups
    assert group.design is not None
    edges = [e for e in group.graph.edges if e.boundaries]
    bits = [next(it.token_bits for p in range(1) if (it := group.graph.itensor(e, p))) for e in edges]
    crossings = [
        CrossingParams(bits=b, depth=e.depth or 2, boundaries=e.boundaries).resources
        for b, e in zip(bits, edges, strict=True)
    ]
    assert group.design.resources["FIFOs"].ff > reduce(add, crossings).ff > 2 * sum(bits)
