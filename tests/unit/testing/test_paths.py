"""streamgen.testing.paths: netlists made by hand, whose deepest path is known."""

import pytest

from streamgen.testing.paths import deepest


class Netlist:
    """Cells with one output each, between the input port `a` and the output port `o`; nets are given by
    name."""

    def __init__(self) -> None:
        self.cells: dict[str, dict] = {}
        self.nets: dict[str, int] = {"a": 2}

    def cell(self, kind: str, output: str, **inputs: str) -> None:
        """A cell that drives the net `output` at port O. An input is a net; "0" and "1" are constants."""
        self.drive(kind, {"O": [output]}, **inputs)

    def drive(self, kind: str, outputs: dict[str, list[str]], **inputs: str) -> None:
        ports = {port: [self._bit(net)] for port, net in inputs.items()}
        ports |= {port: [self._bit(net) for net in nets] for port, nets in outputs.items()}
        self.cells[f"{kind}_{len(self.cells)}"] = {
            "type": kind,
            "port_directions": {port: "output" if port in outputs else "input" for port in ports},
            "connections": ports,
        }

    def register(self, source: str, target: str) -> None:
        self.drive("FDRE", {"Q": [target]}, D=source, C="clk", CE="1", R="0")

    def deepest(self, output: str = "") -> tuple[int, tuple[str, ...]]:
        ports = {"a": {"direction": "input", "bits": [2]}}
        if output:
            ports["o"] = {"direction": "output", "bits": [self._bit(output)]}
        names = {net: {"hide_name": 0, "bits": [bit]} for net, bit in self.nets.items()}
        return deepest({"ports": ports, "cells": self.cells, "netnames": names})

    def _bit(self, net: str) -> int | str:
        return net if net in ("0", "1") else self.nets.setdefault(net, len(self.nets) + 2)


def test_luts_between_registers() -> None:
    n = Netlist()
    n.register("a", "first")
    n.cell("LUT2", "x", I0="first", I1="1")
    n.cell("LUT6", "y", I0="x", I1="first", I2="0", I3="0", I4="0", I5="0")
    n.cell("LUT1", "z", I0="y")
    n.register("z", "last")
    assert n.deepest() == (3, ("first", "x", "y", "z", "last.D"))


def test_registers_alone() -> None:
    n = Netlist()
    n.register("a", "b")
    n.register("b", "c")
    assert n.deepest("c") == (0, ())


def test_ports_are_ends_and_so_are_the_pins_of_a_register() -> None:
    n = Netlist()
    n.cell("INV", "x", I="a")
    assert n.deepest("x") == (1, ("a", "x", "o"))
    n.cell("LUT1", "y", I0="x")
    n.drive("FDSE", {"Q": ["q"]}, D="0", C="clk", CE="y", S="0")
    assert n.deepest("x") == (2, ("a", "x", "y", "q.CE"))


def test_a_carry_chain_is_one_level() -> None:
    n = Netlist()
    n.register("a", "r")
    n.cell("LUT2", "p", I0="r", I1="r")
    n.drive("CARRY4", {"CO": ["c0"], "O": ["s0"]}, CI="0", CYINIT="0", DI="r", S="p")
    for k in range(1, 16):
        n.drive("CARRY4", {"CO": [f"c{k}"], "O": [f"s{k}"]}, CI=f"c{k - 1}", CYINIT="0", DI="r", S="r")
    n.register("s15", "sum")
    levels, path = n.deepest()
    assert levels == 2  # the LUT and the chain
    assert path[:3] == ("r", "p", "c0") and path[-2:] == ("s15", "sum.D")
    # a second chain behind the first is another level, and so is a LUT behind it
    n.drive("CARRY4", {"CO": ["d0"], "O": ["t0"]}, CI="0", CYINIT="0", DI="s15", S="0")
    n.cell("LUT1", "u", I0="t0")
    n.register("u", "v")
    assert n.deepest()[0] == 4


def test_a_carry_out_that_starts_another_chain() -> None:
    """From the output of a LUT into CI is one level; so is a path into CYINIT, even from a chain."""
    n = Netlist()
    n.drive("CARRY4", {"CO": ["c0"]}, CI="0", CYINIT="a", DI="0", S="0")
    n.drive("CARRY4", {"CO": ["c1"]}, CI="0", CYINIT="c0", DI="0", S="0")
    assert n.deepest("c1")[0] == 2
    n.cell("LUT1", "x", I0="c1")
    n.drive("CARRY4", {"CO": ["c2"]}, CI="x", CYINIT="0", DI="0", S="0")
    assert n.deepest("c2")[0] == 4


def test_multiplexers_behind_luts() -> None:
    n = Netlist()
    for k in range(4):
        n.cell("LUT6", f"x{k}", I0="a", I1="a", I2="a", I3="a", I4="a", I5="a")
    n.cell("MUXF7", "m0", I0="x0", I1="x1", S="a")
    n.cell("MUXF7", "m1", I0="x2", I1="x3", S="a")
    n.cell("MUXF8", "m", I0="m0", I1="m1", S="a")
    assert n.deepest("m")[0] == 1  # three cells, one level
    # what chooses comes out of a LUT: a level of its own
    n.cell("MUXF8", "late", I0="m0", I1="m1", S="x0")
    assert n.deepest("late")[0] == 2
    # what is chosen comes from a register: the LUT before the multiplexer is passed
    n.register("a", "r")
    n.cell("MUXF7", "direct", I0="r", I1="r", S="r")
    assert n.deepest("direct")[0] == 1


@pytest.mark.parametrize("kind", ["RAM32M16", "RAM64X1D"])
def test_a_lut_memory_is_read_through_one_level(kind: str) -> None:
    n = Netlist()
    n.cell("LUT1", "address", I0="a")
    n.drive(kind, {"DOA": ["read"]}, ADDRA="address", DIA="data", WE="1", WCLK="clk")
    n.cell("LUT1", "x", I0="read")
    assert n.deepest("x") == (3, ("a", "address", "read", "x", "o"))


def test_what_is_written_ends_a_path() -> None:
    n = Netlist()
    n.cell("LUT1", "data", I0="a")
    n.cell("LUT1", "more", I0="data")
    n.drive("RAM32M16", {"DOA": ["read"]}, ADDRA="0", DIA="more", WE="1", WCLK="clk")
    assert n.deepest("read") == (2, ("a", "data", "more", "read.DIA"))


def test_a_shift_register_ends_a_path_and_is_a_level_of_the_next() -> None:
    n = Netlist()
    n.cell("LUT1", "x", I0="a")
    n.drive("SRL16E", {"Q": ["q"]}, D="x", CE="1", CLK="clk", A0="1")
    assert n.deepest()[0] == 1
    n.cell("LUT1", "y", I0="q")
    n.register("y", "z")
    assert n.deepest() == (2, ("q", "y", "z.D"))


@pytest.mark.parametrize("kind", ["RAMB18E2", "RAMB36E2", "URAM288"])
def test_a_block_memory_ends_and_begins_paths(kind: str) -> None:
    n = Netlist()
    for k in range(3):
        n.cell("LUT1", f"x{k}", I0=f"x{k - 1}" if k else "a")
    n.drive(kind, {"DOUT": ["read"]}, ADDR="x2", DIN="a", CLK="clk")
    n.cell("LUT1", "y", I0="read")
    assert n.deepest("y") == (3, ("a", "x0", "x1", "x2", "read.ADDR"))


def test_a_multiplier_counts_five() -> None:
    n = Netlist()
    n.register("a", "r")
    n.drive("DSP48E2", {"P": ["p"]}, A="r", B="r", PCIN="0")
    n.register("p", "q")
    assert n.deepest()[0] == 5
    n.cell("LUT1", "x", I0="p")
    n.register("x", "y")
    assert n.deepest() == (6, ("r", "p", "x", "y.D"))


def test_a_loop_and_an_unknown_cell_are_errors() -> None:
    n = Netlist()
    n.cell("LUT2", "x", I0="a", I1="y")
    n.cell("LUT1", "y", I0="x")
    with pytest.raises(ValueError, match=r"^net x is part of a combinational loop$"):
        n.deepest("y")
    n = Netlist()
    n.cell("RAMB36E1", "x", I="a")
    with pytest.raises(ValueError) as error:
        n.deepest("x")
    assert str(error.value) == "cell RAMB36E1_0 has the type RAMB36E1, which has no known number of levels"
