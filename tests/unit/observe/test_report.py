"""What a report prints: rows that are alike on one line, every number once, nothing wider than the page."""

import json

import pytest

from streamgen.compiler.lower import GraphBuilder
from streamgen.contract.cost import Resources
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams
from streamgen.observe.alike import gathered, named, spread
from streamgen.observe.report import (
    FifoReport,
    GroupReport,
    IntermediateMemory,
    KernelReport,
    PassTiming,
    Report,
    ResourceReport,
)
from streamgen.platform.boards import DEFAULT_BOARD


def _report() -> Report:
    kernels = [
        KernelReport(name=f"column{k}", kind="Column", busy=1000 + k, stalled=5, idle=100 - k)
        for k in range(32)
    ]
    fifos = [
        FifoReport(name=f"load_w.o -> column{k}.i_w", bits=128, depth=2 + k % 2, greatest=k % 3)
        for k in range(32)
    ]
    group = GroupReport(
        name="tiny",
        units=("a",),
        ended="one phase after another",
        converter_bits=10,
        converter_budget=None,
        multipliers=1024,
        choices=(),
        resources=ResourceReport(
            parts={"Column": Resources(lut=1234.56, ff=10, bram=0.5)},
            board=DEFAULT_BOARD.name,
            available=DEFAULT_BOARD.resources,
            slrs={"SLR0": (Resources(lut=1234.56, ff=10), DEFAULT_BOARD.slrs[0].resources)},
            fill=0.75,
            crossings={},
        ),
        channels={k: {"weights": 1000, "state": 2000} for k in range(4)} | {4: {"weights": 5}},
        channel_bytes=1 << 20,
        fifos=(*fifos, FifoReport(name="a.o -> b.i", bits=24, depth=7, greatest=None)),
        passes=(3000,),
        kernels=(*kernels, KernelReport(name="norm", kind="Norm", busy=1, stalled=2, idle=3)),
        timings=(PassTiming(position=0, tokens=4, cycles=3000, bound=1500.0),),
    )
    memory = IntermediateMemory(unfused=100, converters=10, constants=5, fifos=20, stored=0)
    return Report(name="tiny", clock_mhz=300.0, groups=(group,), memory=memory)


def test_alike_rows_share_a_line() -> None:
    text = str(_report())
    assert "column0..31" in text and "column7" not in text
    assert "1,000 to 1,031" in text and "69 to 100" in text and "2 to 3" in text
    assert "load_w.o -> column0..31.i_w" in text and "a.o -> b.i" in text and "norm" in text


def test_full_has_every_row() -> None:
    text = _report().text(full=True)
    assert all(f"column{k} " in text and f"column{k}.i_w" in text for k in range(32))


def test_numbers_of_tables() -> None:
    text = str(_report())
    assert "1,235" in text and "1234.56" not in text and "0.5" in text  # whole LUTs, halves of memories
    (line,) = (line for line in text.splitlines() if "0 to 3" in line)
    assert line.split()[3:] == ["1,000", "2,000", "3,000", "0.3"]  # of each channel
    assert " 10 " in text and "400,000" in text  # 3,000 cycles at 300 MHz: 10 us, 4 tokens


@pytest.mark.parametrize("width", [60, 80, 110, 200])
@pytest.mark.parametrize("full", [False, True])
def test_tables_fit_the_width(width: int, full: bool) -> None:
    """Nothing is cut off either: every name, put together again, and every number is there."""
    lines = _report().text(full=full, width=width).splitlines()
    assert max(map(len, lines)) <= width
    together = "".join("".join(lines).split())
    assert "…" not in together
    for word in ("column31", "1,131,000", "2,265,000", "400,000", "1,235"):
        assert word in together or (word == "column31" and "column0..31" in together)


def test_the_terminal_says_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert 60 < max(map(len, str(_report()).splitlines())) <= 72


def test_json_has_all_values() -> None:
    found = json.loads(_report().to_json())
    (group,) = found["groups"]
    assert len(group["kernels"]) == 33 and len(group["fifos"]) == 33
    assert found["cycles"] == 3000 and group["resources"]["total"]["lut"] == 1234.56


def test_only_rows_that_differ_in_one_number_are_gathered() -> None:
    def found(*names: str) -> list[str]:
        return [named(part) for part in gathered(names, str, lambda name: None)]

    assert found("a0", "b", "a1", "a2") == ["a0..2", "b"]
    assert found("a0", "a1") == ["a0", "a1"]  # too few
    assert found("a0_5", "a1_6", "a2_8") == ["a0_5", "a1_6", "a2_8"]  # two numbers, each its own way
    assert found("a0.o -> b0", "a1.o -> b1", "a3.o -> b3") == ["a0..3.o -> b0..3"]
    assert gathered(["a0", "a1", "a2"], str, lambda name: name == "a1") == [["a0"], ["a2"], ["a1"]]
    assert spread([1000, 1000]) == "1,000" and spread([3, 1]) == "1 to 3"


def test_graphs_name_functions() -> None:
    builder = GraphBuilder("double")
    tiles = ITensor((1, 16), "f24", (2, 1), (1, 16), ((0,), (1,)))
    x = builder.load("x", tiles, shape=(2, 16), channel=0)
    params = BinaryParams(operation="add", lanes=16, max_tokens=2)
    y = builder.kernel("sum", params, {"itensor": tiles}, i_a=x, i_b=x)
    builder.store("y", y["o"], shape=(2, 16), channel=0)
    assert "sum = Binary[add](i_a=load_x.o, i_b=load_x.o)" in str(builder.build())
