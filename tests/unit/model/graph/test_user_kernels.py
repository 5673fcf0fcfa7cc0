"""What a graph refuses of a user's kernel, by the whole message: before anything is sized or written."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

import streamgen
from streamgen.base.errors import GraphError
from streamgen.compiler.lower import GraphBuilder
from streamgen.contract import Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.model.graph.storage import decode_value, encode_value

TILES = ITensor((1, 2), "i8", (4,), (1,), ((0,), ()))
OFFERED = Curve.nest(2, (4, 1))


@dataclass(frozen=True, kw_only=True)
class CopyParams:
    """o = i, in whatever way a test wants it to go wrong."""

    curve: Curve = OFFERED
    curve_port: str = "o"
    value: int = 4
    bits: int = 16
    fields: tuple[Field, ...] = (Field("tokens", 3),)

    def inputs(self, bounds):
        return {"i": TILES}

    def outputs(self, bounds):
        return {"o": TILES}

    def descriptor_fields(self):
        return self.fields

    def describe(self, bounds):
        return {"tokens": self.value}

    def golden(self, bounds, inputs):
        return {"o": inputs["i"]}

    def cost(self, bounds):
        return Cost(resources=Resources(lut=1, ff=1), ii=1.0, latency=1, cycles=6)

    def curves(self, bounds):
        return {"i": Curve.nest(1, (4, 1)), self.curve_port: self.curve}

    def build(self):
        return Copy(self)


class Copy(wiring.Component):
    """Its ports only."""

    def __init__(self, params):
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.fields)),
                "i": In(stream.Signature(params.bits)),
                "o": In(stream.Signature(16)) if params.bits == 8 else Out(stream.Signature(16)),
            }
        )


class Unfinished:
    """A kernel that somebody began to write."""

    def inputs(self, bounds):
        return {"i": TILES}

    def outputs(self, bounds):
        return {"o": TILES}

    def build(self):
        raise AssertionError("not to be built")


def refused(params, name: str = "copy") -> str:
    with pytest.raises(GraphError) as error:
        builder = GraphBuilder("g")
        x = builder.load("x", TILES, shape=(4, 2), channel=0)
        builder.store("y", builder.kernel(name, params, {}, i=x)["o"], shape=(4, 2), channel=0)
        streamgen.assemble(builder.build())
    return str(error.value)


class Secretive(CopyParams):
    """A kernel that reads memory and does not say how much."""

    memory_ports = {"memory": "read"}


def test_traffic_is_no_secret():
    assert refused(Secretive()) == "kernel 'copy': Secretive has no traffic"


def test_a_method_that_is_not_there():
    assert refused(Unfinished()) == (
        "kernel 'copy': Unfinished has no descriptor_fields, describe, golden, cost, curves"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": 8}, "descriptor field 'tokens' has 3 bits, its value is 8"),
        ({"value": -1}, "descriptor field 'tokens' has 3 bits, its value is -1"),
        ({"value": 1.5}, "descriptor field 'tokens' has 3 bits, its value is 1.5"),
        ({"fields": (Field("count", 3),)}, "describe gives ['tokens'], the fields are ['count']"),
    ],
)
def test_fields_that_do_not_fit(changes, message):
    assert refused(CopyParams(**changes)) == f"graph 'g': node 'copy' cannot run phase 0: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"curve": Curve(((2, ((2, 3),)), (4, ((2, 1),))))},
            "o: the curve is not monotone: token 2 moves in cycle 4, after token 1 in cycle 5",
        ),
        (
            {"curve": Curve.nest(2, (2, 1), (2, 1))},
            "o: the curve is not monotone: token 2 moves in cycle 3, after token 1 in cycle 3",
        ),
        (
            {"curve": Curve.nest(9, (4, -1))},
            "o: the curve is not monotone: token 1 moves in cycle 8, after token 0 in cycle 9",
        ),
        (
            {"curve": Curve.nest(-1, (4, 1))},
            "o: the curve is not monotone: token 0 moves in cycle -1, before cycle 0",
        ),
        ({"curve": Curve.nest(2, (5, 1))}, "o: the curve has 5 tokens; the stream has 4"),
        ({"curve_port": "y"}, "there are curves for ['i', 'y']; the ports are ['i', 'o']"),
    ],
)
def test_curves_that_break_a_law(changes, message):
    expected = f"node 'copy': the curves of CopyParams break a law: {message}"
    assert refused(CopyParams(**changes)) == expected


def test_a_component_with_other_ports():
    assert refused(CopyParams(bits=8)).splitlines() == [
        "node 'copy': the ports of CopyParams and its component differ:",
        "  i: the component has an input of 8 bits; an input of 16 bits is promised",
        "  o: the component has an input of 16 bits; an output of 16 bits is promised",
    ]


def test_params_are_written_by_class_and_fields():
    params = CopyParams(value=3, curve=Curve.nest(7, (4, 2)))
    assert decode_value(json.loads(json.dumps(encode_value(params))), (__name__,)) == params
    with pytest.raises(GraphError) as error:
        encode_value(CopyParams(value=np.int64(3)))
    assert str(error.value) == (
        "np.int64(3) cannot be written: params hold numbers, strings, tuples, ITensors and such dataclasses"
    )


@pytest.mark.parametrize(
    ("name", "reason", "advice"),
    [
        (
            "streamgen_nowhere.clip:ClipParams",
            "No module named 'streamgen_nowhere'",
            "install the package that defines it",
        ),
        (
            "__main__:ClipParams",
            "module '__main__' has no attribute 'ClipParams'",
            "define it in a module and write again",
        ),
        (
            "streamgen.contract.cost:make.<locals>.ClipParams",
            "module 'streamgen.contract.cost' has no attribute 'make'",
            "define it in a module and write again",
        ),
    ],
)
def test_classes_that_cannot_be_found(name, reason, advice):
    module, _, kind = name.partition(":")
    with pytest.raises(GraphError) as error:
        decode_value({"class": name, "fields": {}}, ("streamgen_nowhere",))
    assert str(error.value) == (
        f"the program uses {kind} of {module}, which cannot be imported ({reason}): {advice}"
    )


def test_no_class_but_params_is_made():
    with pytest.raises(GraphError) as error:
        decode_value({"class": "subprocess:Popen", "fields": {"args": "true"}}, ("subprocess",))
    assert str(error.value) == "the program uses Popen of subprocess, which is no Params dataclass"


@pytest.mark.parametrize("trust", [(), ("attack.other", "attac", "streamgen")])
def test_modules_that_nobody_trusts_are_not_run(trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not even found: the module would leave a file."""
    mark = tmp_path / "ran"
    (tmp_path / "attack.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "attack", raising=False)
    with pytest.raises(GraphError) as error:
        decode_value({"class": "attack:Params", "fields": {}}, trust)
    assert str(error.value) == (
        "the program uses Params of attack, and loading it runs that module. If you trust it and "
        "whoever wrote the folder, name it: load(folder, trust=('attack',)), or --trust attack"
    )
    assert not mark.exists()
    with pytest.raises(GraphError, match="cannot be imported"):
        decode_value({"class": "attack:Params", "fields": {}}, ("attack",))
    assert mark.exists()


def test_a_class_of_a_script_is_written_but_not_found(tmp_path: Path):
    """A notebook may define kernels and run them; only loading in another process needs a module."""
    script = tmp_path / "notebook.py"
    script.write_text(
        "import json\n"
        "from dataclasses import dataclass\n"
        "from streamgen.model.graph.storage import decode_value, encode_value\n"
        "@dataclass(frozen=True)\n"
        "class Params:\n"
        "    lanes: int\n"
        "text = json.dumps(encode_value(Params(3)))\n"
        "assert decode_value(json.loads(text)) == Params(3)\n"
        "print(text)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == {"class": "__main__:Params", "fields": {"lanes": 3}}
    with pytest.raises(GraphError, match="define it in a module and write again"):
        decode_value(json.loads(done.stdout))
