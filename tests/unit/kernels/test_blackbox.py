"""Modules in Verilog as kernels: pins held to the Params, files shipped, conflicts of names refused."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import GraphError, StreamgenError
from streamgen.compiler.lower import GraphBuilder
from streamgen.contract import Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.rtl import Library, to_verilog
from streamgen.itensor import ITensor
from streamgen.kernels.blackbox import BlackBoxParams
from streamgen.testing.bench import run
from streamgen.testing.conformance import ConformanceError, check
from streamgen.testing.lint import lint

STAGE = """
module {name} #(parameter BITS = 8, parameter integer ADD = 0) (
    input clk, input rst,
    input [7:0] i_descriptor_payload, input i_descriptor_valid, output i_descriptor_ready,
    input [BITS-1:0] i_payload, input i_valid, output i_ready,
    output reg [BITS-1:0] o_payload, output reg o_valid, input o_ready
);
    reg [7:0] left;
    wire step = i_valid & i_ready;
    assign i_ready = (left != 0) & (~o_valid | o_ready);
    assign i_descriptor_ready = (left == 0) | (step & (left == 1));
    always @(posedge clk) begin
        if (i_descriptor_ready) left <= i_descriptor_valid ? i_descriptor_payload : 8'd0;
        else if (step) left <= left - 8'd1;
        if (step) o_payload <= i_payload + ADD;
        if (~o_valid | o_ready) o_valid <= step;
        if (rst) begin left <= 0; o_valid <= 0; end
    end
endmodule
"""


@dataclass(frozen=True, kw_only=True)
class StageParams:
    """o = i + add, tokens of one number of 8 bits; the file is a choice, so that tests can change it."""

    file: str
    module: str = "stage"
    add: int = 0
    bits: int = 8

    def _itensor(self, bounds):
        return ITensor((1,), "i8", (bounds["tokens"],), (1,), ((0,),))

    def inputs(self, bounds):
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds):
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self):
        return (Field("tokens", 8),)

    def describe(self, bounds):
        return {"tokens": bounds["tokens"]}

    def golden(self, bounds, inputs):
        return {"o": inputs["i"] + np.int8(self.add)}

    def cost(self, bounds):
        return Cost(resources=Resources(lut=30, ff=17), ii=1.0, latency=1, cycles=2 + bounds["tokens"])

    def curves(self, bounds):
        tokens = bounds["tokens"]
        return {"i": Curve.nest(1, (tokens, 1)), "o": Curve.nest(2, (tokens, 1))}

    def build(self):
        return BlackBoxParams(
            module=self.module,
            files=(Path(self.file),),
            parameters={"BITS": self.bits, "ADD": self.add},
            descriptor=self.descriptor_fields(),
            inputs={"i": 8},
            outputs={"o": 8},
        ).build()


@pytest.fixture
def stage(tmp_path: Path) -> StageParams:
    return StageParams(file=write(tmp_path, "stage.v"))


def write(folder: Path, name: str, text: str = STAGE, module: str = "stage") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text.replace("{name}", module))
    return str(folder / name)


def chain(*stages: StageParams, name: str = "chain"):
    """A graph of black boxes behind one another."""
    b = GraphBuilder(name)
    itensor = ITensor((1,), "i8", (6,), (1,), ((0,),))
    port = b.load("x", itensor, shape=(6,), channel=0)
    for k, params in enumerate(stages):
        port = b.kernel(f"stage_{k}", params, {"tokens": 6}, i=port)["o"]
    b.store("y", port, shape=(6,), channel=0)
    return b.build()


def box(file: str, **changes) -> BlackBoxParams:
    params = BlackBoxParams(
        module="stage",
        files=(Path(file),),
        descriptor=(Field("tokens", 8),),
        inputs={"i": 8},
        outputs={"o": 8},
    )
    return replace(params, **changes)


def refused(params: BlackBoxParams) -> list[str]:
    with pytest.raises(ValueError) as error:
        params.build()
    return str(error.value).splitlines()


def test_pins_that_disagree_are_all_listed(stage):
    assert refused(box(stage.file, inputs={"i": 12, "i_more": 4}, outputs={}, parameters={"BITS": 9})) == [
        "module 'stage' of stage.v with BITS = 9 does not have the pins of its Params:",
        "  i_payload is an input of 9 bits, not an input of 12 bits",
        "  i_more_payload is missing, an input of 4 bits",
        "  i_more_valid is missing, an input of 1 bit",
        "  i_more_ready is missing, an output of 1 bit",
        "  o_payload is an output of 9 bits of no port",
        "  o_valid is an output of 1 bit of no port",
        "  o_ready is an input of 1 bit of no port",
    ]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            "input clk, input rst,",
            "",
            ["  clk is missing, an input of 1 bit", "  rst is missing, an input of 1 bit"],
        ),
        ("input o_ready", "output o_ready", ["  o_ready is an output of 1 bit, not an input of 1 bit"]),
        ("input i_valid", "inout i_valid", ["  i_valid is an inout of 1 bit, not an input of 1 bit"]),
        (
            "input rst,",
            "input rst, input [3:0] mode,",
            ["  mode is an input of 4 bits of no port"],
        ),
    ],
)
def test_clock_reset_directions_and_more(tmp_path, old, new, lines):
    text = STAGE[: STAGE.index("    reg [7:0] left")] + "endmodule\n"
    first, *rest = refused(box(write(tmp_path, "stage.v", text.replace(old, new))))
    assert first == "module 'stage' of stage.v does not have the pins of its Params:"
    assert rest == lines


def test_verilog_that_cannot_be_read(tmp_path, stage):
    broken = write(tmp_path / "broken", "stage.v", STAGE.replace("endmodule", ""))
    (line,) = refused(box(broken))
    assert line.startswith("Yosys cannot read module 'stage' of stage.v: stage.v:")
    (line,) = refused(box(stage.file, parameters={"WIDTH": 3}))
    assert line.startswith("Yosys cannot read module 'stage' of stage.v with WIDTH = 3: stage.v:")
    assert line.endswith("Can't find object for defparam `WIDTH`!")
    other = write(tmp_path / "other", "stage.v", STAGE.replace("endmodule", "missing m(clk);\nendmodule"))
    (line,) = refused(box(other))
    assert "Module `\\missing' referenced in module `\\stage'" in line
    assert refused(box(stage.file, module="stages")) == [
        "there is no module 'stages' in stage.v, which define: stage"
    ]


def test_bad_params(stage):
    for changes, message in (
        ({"files": ()}, "black box 'stage' has no files"),
        (
            {"files": (Path("a b.v"),)},
            "file 'a b.v' of black box 'stage' is not called like a file of Verilog: letters, digits, '_', "
            "'-', '.', and .v or .sv at its end",
        ),
        (
            {"parameters": {"ADD": 2**31}},
            "parameter 'ADD' of black box 'stage' is 2147483648; integers of 32 ",
        ),
        (
            {"parameters": {"ADD": "4"}},
            "parameter 'ADD' of black box 'stage' is '4'; integers of 32 bits are ",
        ),
    ):
        with pytest.raises(ValueError) as error:
            box(stage.file, **changes)
        assert str(error.value).startswith(message)
    (line,) = refused(box(stage.file, files=(Path("nowhere", "stage.v"),)))
    assert line.startswith(
        "file 'stage.v' of black box 'stage' cannot be read (is it data of the package?): [Errno 2]"
    )


def test_a_design_is_refused_before_anything_is_written(stage):
    with pytest.raises(GraphError) as error:
        streamgen.assemble(chain(replace(stage, bits=7)))
    assert str(error.value).splitlines() == [
        "node 'stage_0': module 'stage' of stage.v with BITS = 7, ADD = 0 does not have the pins of "
        "its Params:",
        "  i_payload is an input of 7 bits, not an input of 8 bits",
        "  o_payload is an output of 7 bits, not an output of 8 bits",
    ]


def test_files_are_shipped_as_they_are(stage, tmp_path):
    """Twice the same module with other parameters: one file; the whole passes lint."""
    accelerator = streamgen.assemble(chain(stage, replace(stage, add=-3)))
    folder = accelerator.write(tmp_path / "written")
    assert accelerator.manifest.verilog_files == ("design.v", "stage.v")
    assert (folder / "stage.v").read_text() == Path(stage.file).read_text()
    verilog = (folder / "design.v").read_text()
    assert ".ADD(-32'sd3)" in verilog and "module stage " not in verilog
    lint(verilog, "chain", {"stage.v": (folder / "stage.v").read_text()})
    again = streamgen.load(folder, trust=(type(stage).__module__,))
    assert again.golden(np.arange(6, dtype=np.int8)).tolist() == [-3, -2, -1, 0, 1, 2]
    assert again.write(tmp_path / "copy").joinpath("stage.v").exists()


def test_names_that_collide(stage, tmp_path):
    twin = replace(stage, file=write(tmp_path / "twin", "stage.v", STAGE + "\n"))
    with pytest.raises(GraphError) as error:
        streamgen.assemble(chain(stage, twin))
    assert str(error.value) == (
        "node 'stage_1': two different files of Verilog are called 'stage.v': one must be renamed"
    )
    other = replace(stage, file=write(tmp_path / "other", "other.v"))
    with pytest.raises(GraphError) as error:
        streamgen.assemble(chain(stage, other))
    assert str(error.value) == "node 'stage_1': module 'stage' is defined in 'stage.v' and in 'other.v'"
    library = Library()
    library.add_source("chain.v", "module chain; endmodule", ["chain"])
    with pytest.raises(ValueError) as refusal:
        library.check_foreign("module other(a);\nendmodule\nmodule chain(a);\nendmodule\n")
    assert str(refusal.value) == "module 'chain' of 'chain.v' has the name of a module of the design"


def test_files_that_change(tmp_path):
    """What is converted again is converted from what its file says now."""
    file = write(tmp_path, "stage.v")
    for said in ("", "// again\n"):
        write(tmp_path, "stage.v", STAGE + said)
        library = Library()
        library.require(box(file), box(file).build())
        assert library.sources["stage.v"].endswith("endmodule\n" + said)


def test_modules_in_several_files(tmp_path):
    """The second file uses a module and a macro of the first."""
    first = write(tmp_path, "inner.v", "`define WIDTH 8\nmodule inner(input a); wire b = a; endmodule\n")
    text = STAGE.replace("[BITS-1:0]", "[`WIDTH-1:0]").replace("endmodule", "inner x(.a(clk));\nendmodule")
    params = box(first, files=(Path(first), Path(write(tmp_path, "stage.v", text))))
    assert [(source.name, source.modules) for source in params.sources()] == [
        ("inner.v", ("inner",)),
        ("stage.v", ("stage",)),
    ]
    library = Library()
    verilog = to_verilog(params.build(), "top", library)
    assert list(library.sources) == ["inner.v", "stage.v"]
    lint(verilog, "top", library.sources)


def test_amaranth_cannot_run_it(stage):
    message = r"^'stage' is Verilog, which Amaranth's simulator cannot run; streamgen\.testing\."
    with pytest.raises(StreamgenError, match=message):
        run(stage.build(), {"i_descriptor": [], "i": []}, {"o": 0})


def case(tokens: int):
    return {"tokens": tokens}, {"i": np.arange(tokens).astype(np.int8)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "aspect", "message"),
    [
        ("", "", "", ""),
        ("i_payload + ADD", "i_payload + ADD + (left == 2)", "golden", "of 'o' differ (no stalls)"),
        ("o_valid <= 0; end", "end", "reset", "token"),
        (
            "    wire step",
            "    reg b; always @* if (rst) b = clk;\n    wire step",
            "verilog",
            "%Warning-LATCH: stage.v:",
        ),
    ],
)
def test_conformance_reaches_into_the_verilog(stage, tmp_path, old, new, aspect, message):
    """A right one conforms; a wrong sum, a register that no reset reaches, a latch are seen."""
    params = replace(stage, file=write(tmp_path, "stage.v", STAGE.replace(old, new) if old else STAGE), add=5)
    cases = [case(7), case(1), case(30)]
    if not aspect:
        check(params, cases)
        return
    with pytest.raises(ConformanceError) as error:
        check(params, cases, aspects=[aspect])
    assert f"\n  {aspect}: " in str(error.value) and message in str(error.value)
