"""streamgen.testing.kernel: a right kernel passes, and each broken law and promise is found and named."""

from collections import OrderedDict

import numpy as np
import pytest

from streamgen.testing import kernel
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import check_golden, check_promises, descriptor_word, encode_port
from tests.unit.testing.increment import IncrementParams, case


def test_right_kernel_passes(stalls):
    check_golden(IncrementParams(), [case(3, 5), case(0, 1), case(15, 4)], stalls)


@pytest.mark.parametrize(("remembered", "built"), [(0, 4), (1, 3), (2, 2)])
def test_kernels_are_built_again_unless_remembered(remembered, built, monkeypatch):
    builds, build = [], IncrementParams.build
    monkeypatch.setattr(IncrementParams, "build", lambda params: builds.append(params) or build(params))
    monkeypatch.setattr(kernel, "REMEMBERED", remembered)
    monkeypatch.setattr(kernel, "_remembered", OrderedDict())
    one, other = IncrementParams(), IncrementParams(fault="cycles")
    for params in (one, one, other, one):
        check_golden(params, [case(3, 5)])
    assert len(builds) == built


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_right_promises_pass(rows):
    check_promises(IncrementParams(), *case(7, rows))


def test_descriptor_word():
    params = IncrementParams()
    assert descriptor_word(params, {"by": 5, "rows": 3}) == 5 | 6 << 4
    with pytest.raises(ValueError) as error:
        descriptor_word(params, {"by": 16, "rows": 3})
    assert str(error.value) == "descriptor field 'by' has 4 bits, its value is 16"
    with pytest.raises(ValueError) as error:
        descriptor_word(IncrementParams(fault="field missing"), {"by": 1, "rows": 3})
    assert str(error.value) == "describe gives ['by'], the fields are ['by', 'tokens']"


def test_encode_port():
    bounds, inputs = {"rows": 1}, np.array([[1, 2, 3, 4, -1, -2, -3, -4]], np.int8)
    assert encode_port(IncrementParams().inputs(bounds)["i"], inputs) == [0x04030201, 0xFCFDFEFF]


def test_wrong_value_is_shown_where_it_is():
    good, bad = case(3, 5), case(4, 4)
    good[1]["i"][:] = 1
    bad[1]["i"][:] = 1
    bad[1]["i"][3, 6] = 77
    with pytest.raises(AssertionError) as error:
        check_golden(IncrementParams(fault="value"), [good, bad], Stalls(seed=8, sources=0.2))
    assert str(error.value).splitlines() == [
        "IncrementParams(fault='value'), case 1 {'by': 4, 'rows': 4}: 1 of 8 tokens of 'o' differ "
        "(Stalls(seed=8, sources=0.2, sinks=0.0))",
        "  first is token 7 at (3, 4)",
        "  golden 0x5510505 = [[5, 5, 81, 5]]",
        "  rtl    0x5520505 = [[5, 5, 82, 5]]",
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cycles", "cost.cycles is 11, measured 10"),
        ("latency", "cost.latency is 3, measured 1"),
        ("ii", "cost.ii is 2.0, measured 1.000"),
        (
            "curve",
            "o: token 2 moves in cycle 4, but the curve says 5 (6 of 8 differ; "
            "measured [2, 3, 4, 5, 6, 7], promised [2, 3, 5, 6, 8, 9])",
        ),
        ("curve missing", "there are curves for ['i']; the ports are ['i', 'o']"),
        ("gap", "the next descriptor is taken 6 cycles after the last input token; at most 4 are allowed"),
    ],
)
def test_broken_promise_is_named(fault, message):
    bounds, inputs = case(1, 4)
    with pytest.raises(AssertionError) as error:
        check_promises(IncrementParams(fault=fault), bounds, inputs)
    lines = str(error.value).splitlines()
    assert lines == [f"IncrementParams(fault='{fault}') with {bounds}:", f"  {message}"]
