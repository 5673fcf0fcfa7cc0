"""streamgen.runtime.verilog_text: the Verilog of a written folder only describes hardware."""

import random
import re
from pathlib import Path

import pytest

from streamgen.base.errors import CheckpointError, StreamgenError
from streamgen.runtime.verilator import run_tool, verilator_program
from streamgen.runtime.verilog_text import require_harmless

COMMAND = '$system("touch hit")'
HARMLESS = [
    "module top; wire signed [3:0] a = $signed(4'd3); localparam N = $clog2(8); endmodule",
    f"// {COMMAND}\n/* {COMMAND} `include */ module top; endmodule",
    f'module top; localparam S = "{COMMAND.replace(chr(34), "")}"; endmodule',
    "`timescale 1ns/1ps\n`default_nettype none\n`define W 8\nmodule top; wire [`W-1:0] a; endmodule\n",
    "`ifdef X\n`else\nmodule top; wire \\a$b ; endmodule\n`endif",
    "module top; wire a$system; endmodule",
    '(* keep = "yes" *) module top; endmodule',
]
HARMFUL = {
    COMMAND: "'$system' may run commands",
    '$c("system(0);")': "'$c' may run commands",
    '$readmemh("/etc/passwd", m)': "'$readmemh' may run commands, or read and write files",
    '$fopen("x")': "'$fopen' may run",
    "$systemf": "'$systemf' may run",
    "$finish": "'$finish' may run",
    "$": "'$' may run",
    '`include "/etc/passwd"': "'`include' is a directive that may include other text",
    "`verilator_config": "'`verilator_config' is a directive",
    "`systemc_header": "'`systemc_header' is a directive",
    'import "DPI-C" function int system(string s);': "calls C functions",
    'export "DPI-C" function f;': "calls C functions",
    f"`define RUN {COMMAND}\n": "'$system' may run",
    "`define S system\n`define D $`S\n": "'$' may run",
    "`define P(a, b) a``b\n`P($sys, tem)": "'`' is a directive",
    '"""': "does not end",
    f'"" """ {COMMAND} ; "': "may run|does not end",
    "/* ": "does not end",
    '"a\n"': "does not end",
    f"/**/ {COMMAND}": "'$system'",
    f'"a\\"" ; {COMMAND}': "'$system'",
    f"\\a\\b {COMMAND}": "'$system'",
    "$\\\nsystem": "may run",
}


def _checked(text: str) -> None:
    require_harmless({Path("design.v"): text.encode()})


@pytest.mark.parametrize("text", HARMLESS)
def test_hardware(text: str) -> None:
    _checked(text)


@pytest.mark.parametrize("text", HARMFUL)
def test_harm(text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _checked(f"module top;\n{text}\nendmodule\n")
    assert any(reason in str(caught.value) for reason in HARMFUL[text].split("|"))
    assert re.match(r"design\.v:[2-4]: ", str(caught.value))


def test_what_our_own_designs_say_is_allowed() -> None:
    from tests.shared.accelerators import tiny

    _checked(tiny().groups[0].design.verilog)


PIECES = [
    *(
        '"',
        "\\",
        "\n",
        " ",
        "/*",
        "*/",
        "//",
        "`ifdef X\n",
        "`else\n",
        "`endif\n",
        "`define A ",
        "`A ",
        "(*",
        "*)",
    ),
    *("\\a ", '"""', "``", '`"', "wire a;", "$signed(1)", "'", "/", "*", '\\"', "\t", "\r\n", "\f", "\x0b"),
    COMMAND.replace('"', ""),
]


@pytest.mark.slow
def test_what_verilator_reads_as_a_command_is_found(seed: int, tmp_path: Path) -> None:
    """Random texts of comments, strings, names and directives surround a command. If Verilator's preprocessor
    keeps the command as code, streamgen has refused the text."""
    draw, left = random.Random(seed), 0
    verilator = verilator_program()
    taken = 0
    while taken < 150:
        text = "".join(draw.choices(PIECES, k=draw.randint(3, 14))) + "\n"
        if "$system" not in text:
            continue
        try:
            _checked(text)
        except CheckpointError:
            continue
        taken += 1
        (tmp_path / "a.v").write_text(text)
        try:
            printed = run_tool(verilator, "-E", "-P", "--quiet", str(tmp_path / "a.v"))
        except StreamgenError:  # Verilator refuses it
            continue
        bare = re.sub(r'"(?:[^"\\]|\\.)*"|\\\S+', "", printed, flags=re.DOTALL)
        assert "$system" not in bare, text
        left += 1
    assert left > 20
