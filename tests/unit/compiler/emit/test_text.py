"""The text of designs means the same to all who read it: both languages, with Verilator and with Yosys."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from amaranth import Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim.blocks import Case
from streamgen.gateware.rtl import to_verilog
from streamgen.runtime.verilator import VERILATOR_FLAGS, package_folder, run_tool
from streamgen.testing.lint import joined, lint
from tests.designs.sim.test_blocks import FIRSTS, SWEEP
from tests.shared.accelerators import tiny


def test_a_design_passes_lint() -> None:
    lint(tiny().groups[0].design.verilog, "tiny")


def test_verilator_makes_the_same_program_of_both_languages(tmp_path: Path) -> None:
    source = tmp_path / "design.v"
    source.write_text(tiny().groups[0].design.verilog)
    verilator = package_folder() / "bin" / "verilator_bin"
    made = []
    for language in ("1364-2005", "1800-2012"):
        folder = tmp_path / language
        flags = (
            *VERILATOR_FLAGS,
            "--default-language",
            language,
            "--top-module",
            "tiny",
            "--Mdir",
            str(folder),
        )
        run_tool(str(verilator), *flags, str(source))
        made.append({file.name: file.read_text() for file in folder.glob("*.cpp")})
    assert made[0] == made[1] and made[0]


@pytest.mark.campaign
@pytest.mark.slow
def test_every_variant_passes_lint_and_names_its_memories() -> None:
    text = joined(params.build() for cases in FIRSTS.values() for params, _ in cases)
    lint(text)
    assert {style for style, _, _ in memories(text)} == STYLES.keys()
    assert not wrong_memories(text)


STYLES = {
    ("ram_style", "distributed"): "written",
    ("ram_style", "block"): "written, read by a clock",
    ("ram_style", "ultra"): "written, read by a clock",
    ("rom_style", "distributed"): "only read",
    ("rom_style", "block"): "only read",
}


def memories(text: str) -> Iterator[tuple[tuple[str, str] | None, str, str]]:
    """Style, name of the module and name of every memory, and how it is used."""
    for module, body in re.findall(r"^module (.*?)\((.*?)^endmodule", text, re.MULTILINE | re.DOTALL):
        found = re.findall(r"((?:^ *\(\*.*\n)*)^ *reg (?:\[.*?\] )?(\S+) ?\[.*?\];", body, re.MULTILINE)
        for attributes, name in found:
            style = re.search(r'(r[ao]m_style) = "(\w+)"', attributes)
            written = re.search(rf"{re.escape(name)} ?\[.*<=", body)
            without_clock = re.search(rf"assign .*= {re.escape(name)} ?\[", body)
            use = "only read" if not written else "written" + ", read by a clock" * (not without_clock)
            yield (style[1], style[2]) if style else None, f"{module}.{name}", use


def wrong_memories(text: str) -> list[str]:
    """Those that say nothing, or what cannot be built as they are used."""
    return [name for style, name, use in memories(text) if style is None or not use.startswith(STYLES[style])]


def test_a_memory_without_a_style_is_found() -> None:
    text = tiny().groups[0].design.verilog
    assert not wrong_memories(text) and len(list(memories(text))) > 5
    assert len(wrong_memories(re.sub(r' *\(\* ram_style = "block" \*\)\n', "", text, count=1))) == 1
    swapped = text.replace('ram_style = "distributed"', 'ram_style = "block"')
    assert len(wrong_memories(swapped)) > 1


@pytest.mark.campaign
@pytest.mark.parametrize("cases", SWEEP.values(), ids=SWEEP)
def test_every_block_passes_lint(cases: list[Case]) -> None:
    text = joined(params.build() for params, _ in cases)
    lint(text)
    assert not wrong_memories(text)


class Nothing(wiring.Component):
    """A stream whose tokens have no bits, and a signal that has none, beside one that counts."""

    i: In(stream.Signature(0))
    o: Out(4)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nothing = Signal(unsigned(0), name="nothing")
        m.d.sync += [nothing.eq(self.i.payload), self.o.eq(self.o + self.i.valid + nothing)]
        m.d.comb += self.i.ready.eq(1)
        return m


def test_what_has_no_bits_is_not_written() -> None:
    text = to_verilog(Nothing())
    assert "nothing" not in text and "payload" not in text and "i__valid" in text
    lint(text, "top")


def test_no_block_waits_for_a_change() -> None:
    """Read as SystemVerilog, `always @*` is not evaluated while its inputs rest at their initial values."""
    text = tiny().groups[0].design.verilog
    assert "always @*" not in text and text.count("always @(posedge") > 100


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("module top(output reg o); always @* o = 1; endmodule", "ALWNEVER"),
        ("module top(input i, output o); wire [-1:0] x; assign o = i; endmodule", "without bits"),
        ("module top(input a, b, output o); assign o = a; assign o = b; endmodule", "MULTIDRIVEN|driver"),
        ("module top(output o); wire x = ~y; wire y = x; assign o = x; endmodule", "UNOPTFLAT|loop"),
        ("module top(input bit, output o); assign o = bit; endmodule", "bit"),
    ],
)
def test_lint_complains(text: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        lint(text, "top")
