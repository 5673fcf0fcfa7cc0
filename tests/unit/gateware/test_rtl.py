"""streamgen.gateware.rtl: each block once, the same bytes each time, Verilog that Verilator accepts."""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amaranth import Cat, Module, Signal
from amaranth.back import rtlil
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.base.errors import StreamgenError
from streamgen.fifo.queue import QueueParams
from streamgen.gateware import rtl
from streamgen.gateware.rtl import Shared, block_name, rtlil_to_verilog, run_yosys, to_verilog
from streamgen.gateware.stream import (
    FanoutParams,
    GatherParams,
    JoinParams,
    RegisterSliceParams,
    ScatterParams,
    SelectorParams,
)
from streamgen.testing.bench import random_tokens, run
from streamgen.testing.lint import lint


@dataclass(frozen=True, kw_only=True)
class LeafParams:
    """o = f(i): combinational or registered."""

    kind: str
    bits: int = 8

    def build(self):
        return Leaf(self)


class Leaf(wiring.Component):
    def __init__(self, params):
        self._params = params
        super().__init__({"i": In(params.bits), "o": Out(params.bits)})

    def elaborate(self, platform):
        m = Module()
        if self._params.kind == "comb":
            m.d.comb += self.o.eq(~self.i)
        else:
            m.d.sync += self.o.eq(~self.i)
        return m


class Rows(wiring.Component):
    """A chain of shared leaves of each kind, `count` of each, and a pair of a different width."""

    def __init__(self, count):
        self._count = count
        super().__init__({"i": In(8), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        value = self.i
        for kind in ("comb", "sync"):
            for k in range(self._count):
                leaf = Shared(LeafParams(kind=kind))
                m.submodules[f"{kind}_{k}"] = leaf
                m.d.comb += leaf.i.eq(value)
                value = leaf.o
        halves = []
        for k in range(2):
            leaf = Shared(LeafParams(kind="comb", bits=4))
            m.submodules[f"half_{k}"] = leaf
            m.d.comb += leaf.i.eq(value.word_select(k, 4))
            halves.append(leaf.o)
        m.d.comb += self.o.eq(Cat(halves))
        return m


@dataclass(frozen=True, kw_only=True)
class PairParams:
    """Two shared queues in a row: a block that shares blocks."""

    bits: int

    def build(self):
        return Pair(self)


class Pair(wiring.Component):
    def __init__(self, params):
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = Shared(QueueParams(bits=self._params.bits, depth=4))
        m.submodules.second = second = Shared(QueueParams(bits=self._params.bits, depth=4))
        wiring.connect(m, wiring.flipped(self.i), first.i)
        wiring.connect(m, first.o, second.i)
        wiring.connect(m, second.o, wiring.flipped(self.o))
        return m


class Chain(wiring.Component):
    """Three shared pairs in a row."""

    def __init__(self):
        signature = stream.Signature(8)
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform):
        m = Module()
        source = wiring.flipped(self.i)
        for k in range(3):
            m.submodules[f"pair_{k}"] = pair = Shared(PairParams(bits=8))
            wiring.connect(m, source, pair.i)
            source = pair.o
        wiring.connect(m, source, wiring.flipped(self.o))
        return m


def instances(text, name):
    return len(re.findall(rf"^ +{name} ", text, re.MULTILINE))


def modules(text):
    """Module names and the pins of each."""
    return {
        name: pins.split(", ") for name, pins in re.findall(r"^module (\w+)\((.*)\);", text, re.MULTILINE)
    }


def test_equal_blocks_are_one_module():
    text = to_verilog(Rows(5))
    lint(text, "top")
    assert len(modules(text)) == len(re.findall("^module ", text, re.MULTILINE)) == 4
    for kind in ("comb", "sync"):
        assert instances(text, block_name(LeafParams(kind=kind))) == 5
    assert instances(text, block_name(LeafParams(kind="comb", bits=4))) == 2


def test_blocks_without_clock_get_no_clock():
    pins = modules(to_verilog(Rows(2)))
    assert sorted(pins[block_name(LeafParams(kind="comb"))]) == ["i", "o"]
    assert sorted(pins[block_name(LeafParams(kind="sync"))]) == ["clk", "i", "o", "rst"]
    assert sorted(pins["top"]) == ["clk", "i", "o", "rst"]


def test_shared_blocks_share_blocks():
    text = to_verilog(Chain(), "chain")
    lint(text, "chain")
    queue, pair = block_name(QueueParams(bits=8, depth=4)), block_name(PairParams(bits=8))
    assert len([name for name in modules(text) if name.startswith("queue_")]) == 1
    assert instances(text, queue) == 2
    assert instances(text, pair) == 3


def test_shared_block_simulates_as_itself(stalls):
    tokens = random_tokens(8, 100)
    assert run(Chain(), {"i": tokens}, {"o": 100}, stalls=stalls).tokens["o"] == tokens


def test_block_name_is_the_choice_and_nothing_else():
    assert block_name(LeafParams(kind="comb")) == block_name(LeafParams(kind="comb", bits=8))
    assert block_name(LeafParams(kind="comb")) != block_name(LeafParams(kind="comb", bits=9))
    assert re.fullmatch("register_slice_[0-9a-f]{10}", block_name(RegisterSliceParams(bits=8)))


def test_same_input_same_bytes():
    here = Path(__file__)
    program = (
        f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as t; print(t.digest())"
    )
    expected = digest()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.strip() == expected


@dataclass(frozen=True)
class _Outer:
    """A block that instances another one."""

    inner: Any

    def build(self) -> wiring.Component:
        return _Around(self.inner)


@dataclass(frozen=True, kw_only=True)
class TypedParams:
    width: int

    def build(self) -> wiring.Component:
        return Leaf(LeafParams(kind="comb" if self.width is True else "sync"))


class _Around(wiring.Component):
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        super().__init__({"i": In(8), "o": Out(8)})

    def elaborate(self, platform: Any) -> Module:
        _elaborated.append(self._inner)
        m = Module()
        m.submodules.inner = inner = Shared(self._inner)
        m.d.comb += [inner.i.eq(self.i), self.o.eq(inner.o)]
        return m


_elaborated: list[Any] = []


def _text(params: Any) -> str:
    library = rtl.Library()
    return rtlil_to_verilog(rtl.to_rtlil(_Around(params), "top", library) + library.text(), "top")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocks of other tests."""
    monkeypatch.setattr(rtl, "_memory", rtl._KeptBlocks())
    _elaborated.clear()


def test_blocks_are_remembered(memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that they instance, by their choices: 1 is equal to True, and another block."""
    one, two = _Outer(_Outer(LeafParams(kind="comb"))), _Outer(_Outer(LeafParams(kind="sync")))
    monkeypatch.setattr(rtl, "REMEMBERED", 0)
    cold = [_text(params) for params in (one, two, one)]
    assert len(_elaborated) == 9
    monkeypatch.setattr(rtl, "REMEMBERED", 1_000_000)
    _elaborated.clear()
    assert [_text(params) for params in (one, two, one)] == cold
    assert len(_elaborated) == 7  # of the third the top alone
    named = [_text(TypedParams(width=width)) for width in (1, True)]
    assert TypedParams(width=1) == TypedParams(width=True) and named[0] != named[1]


def test_blocks_are_forgotten(memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for longest, with no more characters left than are allowed."""
    blocks = [LeafParams(kind=kind) for kind in ("comb", "sync")]
    monkeypatch.setattr(rtl, "REMEMBERED", 1_000_000)
    for params in (*blocks, blocks[0]):
        _text(params)
    monkeypatch.setattr(rtl, "REMEMBERED", rtl._memory._size - 1)
    _text(LeafParams(kind="comb", bits=8))
    rtl._memory.keep(rtl._Block(PairParams(bits=1), "none"))
    assert [params for params, _ in rtl._memory._blocks] == [blocks[0], PairParams(bits=1)]
    assert rtl._memory._size == sum(len(block.text) for block in rtl._memory._blocks.values())


def digest():
    text = to_verilog(Chain()) + to_verilog(Rows(2)) + to_verilog(SelectorParams(bits=8, ports=5).build())
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "params",
    [
        RegisterSliceParams(bits=24, stages=2),
        FanoutParams(bits=8, branches=9, fan_out=3),
        JoinParams(bits=(8, 1, 24)),
        SelectorParams(bits=8, ports=3),
        GatherParams(bits=8, slots=4, token_bits=16),
        ScatterParams(bits=8, slots=4, token_bits=16),
        QueueParams(bits=8, depth=1),
        QueueParams(bits=8, depth=5),
        QueueParams(bits=8, depth=1000),
        QueueParams(bits=72, depth=5000, memory="uram"),
    ],
    ids=block_name,
)
def test_every_block_passes_verilator(params):
    lint(to_verilog(params.build(), "block"), "block")


def test_lint_complains():
    with pytest.raises(AssertionError, match="Can't find definition of variable: 'j'"):
        lint("module top(input i, output o); assign o = j; endmodule", "top")


def test_memory_keeps_its_style_and_yosys_is_silent(capfd):
    text = to_verilog(QueueParams(bits=72, depth=1000, memory="uram").build())
    assert '(* ram_style = "ultra" *)' in text
    assert "src" not in re.findall(r"\(\* (\w+)", text)
    assert capfd.readouterr() == ("", "")


def test_a_register_that_keeps_its_value_has_an_enable():
    verilog = to_verilog(Chain())
    assert re.search(r"if \(rst\) level <= 3'h0;\s+else if \(\w+\) level <= ", verilog)


def test_what_nobody_reads_is_not_written():
    """Nor what an enable or a reset of a register has taken the place of."""
    modules = to_verilog(Chain()).split("endmodule")
    made = [(module, wire) for module in modules for wire in re.findall(r"assign (_\d+_) = ", module)]
    assert made and not [wire for module, wire in made if len(re.findall(rf"\b{wire}\b", module)) < 3]


class Spread(wiring.Component):
    """The sign of a number, and a wire, each as eight equal bits."""

    number: In(4)
    other: In(4)
    signs: Out(8)
    wires: Out(8)

    def elaborate(self, platform):
        m = Module()
        below = Signal()
        m.d.comb += [
            below.eq(self.number < self.other),
            self.signs.eq(self.number[3].replicate(8)),
            self.wires.eq(below.replicate(8) ^ Cat(self.number, self.other)),
        ]
        return m


def test_equal_bits_are_said_once():
    """Of a vector as of a wire, so that a simulator need not put them together bit by bit."""
    verilog = to_verilog(Spread())
    assert "{8{number[3]}}" in verilog and "{8{below}}" in verilog


def test_run_yosys_writes_what_is_asked_for():
    source = rtlil.convert(RegisterSliceParams(bits=3).build(), name="slice")
    assert '"slice"' in run_yosys(source, "proc", writer="write_json")
    assert "module slice(" in rtlil_to_verilog(source)


class Idle(wiring.Component):
    """An output that nothing drives."""

    i: In(1)
    o: Out(1)
    idle: Out(3)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.i)
        return m


def test_an_output_that_nothing_drives_is_an_output():
    text = to_verilog(Idle(), "idle")
    assert re.search(r"^  output \[2:0\] idle;", text, re.MULTILINE)
    assert re.search(r"assign idle += 3'h0", text)


def test_run_yosys_says_why_it_failed():
    with pytest.raises(StreamgenError) as error:
        run_yosys("module \\a\nend\n", "hierarchy -check -top b", writer="write_json")
    lines = str(error.value).splitlines()
    assert lines[0] == "Yosys failed; it printed last:"
    assert lines[-1] == "  ERROR: Module `b' not found!"


def test_what_has_no_bits_is_no_pin():
    """In Verilog it would be two bits that nothing drives."""

    class Empty(wiring.Component):
        def __init__(self):
            super().__init__({"i": In(1), "o": Out(1), "nothing": Out(0)})

        def elaborate(self, platform):
            m = Module()
            m.d.sync += self.o.eq(self.i)
            return m

    assert to_verilog(Empty()).count("nothing") == 0
