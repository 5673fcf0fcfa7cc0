"""The five steps of CONTRIBUTING, to the letter: from an empty file to a kernel that keeps the contract."""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from amaranth.lib import wiring

from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor
from streamgen.testing import check, check_golden, check_promises, run

ROOT = Path(__file__).parents[2]

SAY_IT = '''"""Invert: every bit of a value is turned.

    o = ~i

Tokens of `lanes` u8 values go out in the order in which they come in, one a cycle.
"""
'''
PARAMS = '''
from dataclasses import dataclass
from math import prod

from streamgen.contract import Field


@dataclass(frozen=True, kw_only=True)
class InvertParams:
    """lanes: values of a token. max_tokens: the longest execution."""

    lanes: int
    max_tokens: int

    def __post_init__(self):
        for name in ("lanes", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of an invert must be at least 1, not {getattr(self, name)}")

    def inputs(self, bounds):
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds):
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self):
        return (Field("tokens", self.max_tokens.bit_length()),)

    def describe(self, bounds):
        return {"tokens": self._itensor(bounds).token_count}

    def _itensor(self, bounds):
        itensor = bounds["itensor"]
        if itensor.dtype != "u8" or prod(itensor.element_shape) != self.lanes:
            raise ValueError(f"an invert of {self.lanes} lanes of u8 cannot take {itensor}")
        if itensor.token_count > self.max_tokens:
            raise ValueError(f"an invert of at most {self.max_tokens} tokens cannot run {itensor}")
        return itensor
'''
GOLDEN = """
    def golden(self, bounds, inputs):
        return {"o": 255 - inputs["i"]}
"""
HARDWARE = '''
    def build(self):
        return Invert(self)


from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.gateware.stream import Countdown, CountdownParams, descriptor_signature


class Invert(wiring.Component):
    """`i` to `o`, which is registered."""

    def __init__(self, params):
        self._params = params
        token = stream.Signature(params.lanes * 8)
        fields = descriptor_signature(params.descriptor_fields())
        super().__init__({"i_descriptor": In(fields), "i": In(token), "o": Out(token)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.count = count = Countdown(CountdownParams(bits=self._params.max_tokens.bit_length()))
        free = ~self.o.valid | self.o.ready
        m.d.comb += [
            count.i_count.valid.eq(self.i_descriptor.valid),
            count.i_count.payload.eq(self.i_descriptor.payload.tokens),
            self.i_descriptor.ready.eq(count.i_count.ready),
            self.i.ready.eq(count.active & free),
            count.step.eq(self.i.valid & self.i.ready),
        ]
        with m.If(free):
            m.d.sync += [self.o.valid.eq(count.step), self.o.payload.eq(~self.i.payload)]
        return m
'''
PROMISE = """
    def cost(self, bounds):
        count = CountdownParams(bits=self.max_tokens.bit_length()).resources
        turned = Resources(lut=self.lanes * 8, ff=self.lanes * 8 + 1)
        tokens = self._itensor(bounds).token_count
        return Cost(resources=count + turned, ii=1.0, latency=1, cycles=2 + tokens)

    def curves(self, bounds):
        tokens = self._itensor(bounds).token_count
        return {"i": Curve.nest(1, (tokens, 1)), "o": Curve.nest(2, (tokens, 1))}
"""
STEPS = {
    "Say it": SAY_IT,
    "Params": PARAMS,
    "Golden": GOLDEN,
    "Hardware": HARDWARE,
    "Promise and prove": PROMISE,
}


def rows(tokens: int, dtype: str = "u8") -> ITensor:
    return ITensor((1, 4), dtype, (tokens, 2), (1, 4), ((0,), (1,)))


def case(tokens: int, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    values = np.random.default_rng(seed).integers(0, 256, (tokens, 8))
    values[0, :2] = 0, 255
    return {"itensor": rows(tokens)}, {"i": values}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package of one's own."""
    place = tmp_path / "my_kernels"
    place.mkdir()
    (place / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_kernels"]:
        monkeypatch.delitem(sys.modules, name)
    return place


def _written(package: Path, steps: int) -> ModuleType:
    """The module after so many steps, under a name of its own."""
    text = SAY_IT
    if steps > 1:
        head, _, body = PARAMS.partition("\n\n\n")
        inside = [GOLDEN] * (steps > 2) + [PROMISE] * (steps > 4)
        outside = HARDWARE if steps > 3 else ""
        if steps > 4:
            head += "\nfrom streamgen.contract.cost import Cost, Curve, Resources"
        text += f"{head}\n\n\n{body}{''.join(inside)}{outside}"
    name = f"invert_{steps}"
    (package / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(f"my_kernels.{name}")


def test_the_steps_are_those_of_the_text() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^\d\. \*\*(.+)\.\*\*", text, re.MULTILINE) == [*STEPS]


def test_five_steps(package: Path) -> None:
    # 1. Say it: a file that begins with the equation and the order of the tiles that come in and go out
    said = ast.get_docstring(ast.parse(inspect.getsource(_written(package, 1))))
    assert said is not None and "o = ~i" in said and "order" in said
    # 2. Params: frozen, keyword-only; ValueError with name, law and value; itensors, what arrives at run time
    made = _written(package, 2).InvertParams
    assert made.__dataclass_params__.frozen and all(f.kw_only for f in dataclasses.fields(made))
    with pytest.raises(ValueError, match=r"^lanes of an invert must be at least 1, not 0$"):
        made(lanes=0, max_tokens=1)
    params, bounds = made(lanes=4, max_tokens=40), {"itensor": rows(3)}
    assert params.inputs(bounds) == {"i": rows(3)} and params.outputs(bounds) == {"o": rows(3)}
    assert params.describe(bounds) == {"tokens": 6}
    # 3. Golden: numpy, whole tensors; no clock, no tiles, no lanes
    params = _written(package, 3).InvertParams(lanes=4, max_tokens=40)
    assert params.golden(bounds, {"i": np.array([[0, 1, 255]])})["o"].tolist() == [[255, 254, 0]]
    # 4. Hardware: a component that takes the params and nothing else; it computes
    params = _written(package, 4).InvertParams(lanes=4, max_tokens=40)
    built = params.build()
    assert isinstance(built, wiring.Component) and [*inspect.signature(type(built)).parameters] == ["params"]
    result = run(built, {"i_descriptor": [2], "i": [0x00FF01FE, 0]}, {"o": 2})
    assert result.tokens["o"] == [0xFF00FE01, 0xFFFFFFFF]
    # 5. Promise and prove
    params = _written(package, 5).InvertParams(lanes=4, max_tokens=40)
    check_golden(params, [case(3, 0), case(1, 1)])
    check_promises(params, *case(5, 2))
    check(params, [case(3, 0), case(1, 1)], aspects=["params"])


@pytest.mark.slow
def test_the_whole_contract(package: Path) -> None:
    """`streamgen.testing.check`, all of it, on cases that differ in all that a descriptor can name."""
    params = _written(package, 5).InvertParams(lanes=4, max_tokens=40)
    refused = [{"itensor": rows(21)}, {"itensor": rows(1, "i8")}]
    check(params, [case(3, 0), case(1, 1), case(20, 2)], refused=refused)


def test_it_enters_graphs_as_ours_do(package: Path) -> None:
    params = _written(package, 5).InvertParams(lanes=4, max_tokens=40)
    builder = GraphBuilder("inverted")
    x = builder.load("x", rows(3), shape=(3, 8), channel=0)
    builder.store(
        "y", builder.kernel("invert", params, {"itensor": rows(3)}, i=x)["o"], shape=(3, 8), channel=0
    )
    assert "invert = Invert" in str(builder.build())
