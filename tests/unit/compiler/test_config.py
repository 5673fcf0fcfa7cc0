"""What is chosen is checked when it is chosen, field by field."""

import math
import re
from typing import Any

import numpy as np
import pytest

from streamgen.compiler.config import CompileConfig


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("max_tokens", "5", "an integer or None"),
        ("max_tokens", 1.5, "an integer or None"),
        ("max_tokens", True, "an integer or None"),
        ("multipliers", 64.0, "an integer or None"),
        ("channels", {}, "an integer or None"),
        ("group", [32], "an integer"),
        ("lanes", 2.0, "an integer or None"),
        ("fill", "a", "a finite number or None"),
        ("hold_bits", 1e6, "an integer or None"),
        ("clock_mhz", math.inf, "a finite number"),
        ("clock_mhz", math.nan, "a finite number"),
        ("clock_mhz", None, "a finite number"),
        ("minimum", 1, "True or False"),
        ("name", None, "a string"),
        ("weights", ["w4"], "a string or None"),
        ("formats", ["w4"], "a mapping from layers to formats"),
    ],
)
def test_types(field: str, value: Any, wanted: str) -> None:
    message = f"CompileConfig.{field} is {value!r}; {wanted} is needed"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        CompileConfig(**{field: value})


@pytest.mark.parametrize("value", [0, -1.0, 1000.5, 1e9])
def test_clocks(value: float) -> None:
    with pytest.raises(ValueError, match=r"^CompileConfig\.clock_mhz is .*; it must be 1 to 1000$"):
        CompileConfig(clock_mhz=value)


@pytest.mark.parametrize(
    "name", ["", "a b", "1st", "größe", "module", "logic", "edge", "ap_clk", "m_axi_gmem0"]
)
def test_names(name: str) -> None:
    law = "a Verilog identifier, and not a keyword or a pin of a kernel"
    with pytest.raises(ValueError) as error:
        CompileConfig(name=name)
    assert str(error.value) == f"CompileConfig.name is {name!r}; it must be {law}"
    assert CompileConfig(name="module_1").name == "module_1"


def test_lanes() -> None:
    for lanes in (0, 3, 64):
        with pytest.raises(ValueError) as error:
            CompileConfig(lanes=lanes)
        law = "None or a power of two up to 32"
        assert str(error.value) == f"CompileConfig.lanes is {lanes}; it must be {law}"
    assert CompileConfig(lanes=32).lanes == 32


def test_what_may_be_held() -> None:
    message = "CompileConfig.hold_bits is -1; it must be None or at least 0"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CompileConfig(hold_bits=-1)
    assert CompileConfig(hold_bits=0).hold_bits == 0


def test_numbers_of_numpy_are_taken_as_python_s() -> None:
    given: dict[str, Any] = {"max_tokens": np.int64(5), "minimum": np.bool_(False), "lanes": np.uint8(4)}
    found = CompileConfig(**given, clock_mhz=np.float32(250), fill=1)
    same = CompileConfig(max_tokens=5, minimum=False, lanes=4, clock_mhz=250.0, fill=1.0)
    assert repr(found) == repr(same) and found == same
