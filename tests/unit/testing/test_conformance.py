"""Conformance: a right kernel conforms. For a wrong kernel the error names kernel, port, promise and
measurement."""

import re

import numpy as np
import pytest

from streamgen.testing.conformance import ASPECTS, ConformanceError, check, conformance_tests
from tests.unit.testing.increment import HiddenParams, IncrementParams, case

CASES = [case(3, 5), case(15, 4, 1), case(0, 1, 2)]
REFUSED = [{"by": -1, "rows": 1}]

test_increment_conforms = pytest.mark.slow(conformance_tests(IncrementParams(), CASES, refused=REFUSED))


def caught(params, cases=CASES, **options) -> list[str]:
    """The lines of the error after its first line, which names the kernel and the seed."""
    with pytest.raises(ConformanceError) as error:
        check(params, cases, refused=REFUSED, **options)
    first, *lines = str(error.value).splitlines()
    assert first == f"{type(params).__name__} {params!r} with seed {options.get('seed', 0)} does not conform:"
    return [line.removeprefix("  ") for line in lines]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("golden touches", "case 0: i: golden changes its input"),
        ("golden port", "case 0: golden returns ['y']; the outputs are ['o']"),
        (
            "curve falls",
            "case 0: o: the curve is not monotone: token 2 moves in cycle 3, after token 1 in cycle 3",
        ),
        ("curve short", "case 0: o: the curve has 5 tokens; the stream has 10"),
        ("curve missing", "case 0: there are curves for ['i']; the ports are ['i', 'o']"),
        ("narrow", "o: the component has an output of 24 bits; an output of 32 bits is promised"),
        ("pin", "irq: a kernel may only have streams"),
        ("port", "i_more: no case uses this port"),
        ("drops", "done: the component has no such output of 1 bit; a run waits for it"),
        ("accepts", "describe accepts {'by': -1, 'rows': 1}: {'by': -1, 'tokens': 2}"),
    ],
)
def test_liars_seen_without_a_run(fault, message):
    assert caught(IncrementParams(fault=fault))[0] == f"params: {message}"


def test_resources_do_not_depend_on_the_bounds():
    (line,) = caught(IncrementParams(fault="other lut"))
    assert line.startswith(
        "params: cost promises different resources for different bounds: ['Resources(lut=71, "
    )


def test_a_field_that_does_not_fit():
    lines = caught(IncrementParams(), [case(16, 1)])
    assert lines == [
        "params: case 0 {'by': 16, 'rows': 1}: descriptor field 'by' has 4 bits, its value is 16"
    ]


def test_a_choice_that_is_not_in_the_name():
    assert caught(HiddenParams()) == ["params: field 'lanes' is not in the repr, which names the module"]


def test_params_that_are_none():
    assert caught(object())[:2] == ["params: there is no method inputs", "params: there is no method outputs"]


def test_params_that_cannot_be_loaded():
    class LocalParams(IncrementParams):
        pass

    (line,) = caught(LocalParams())
    assert line.startswith("params: a written accelerator could not be loaded: the program uses ")
    assert line.endswith(": define it in a module and write again")


def test_a_wrong_shape():
    bounds, inputs = case(1, 2)
    lines = caught(IncrementParams(), [(bounds, {"i": inputs["i"][:1]}), (bounds, {"j": inputs["i"]})])
    assert lines[0].startswith("params: case 0 {'by': 1, 'rows': 2}: ")
    assert lines[1] == "params: case 1: the inputs are ['i']; the case has ['j']"


DIFFERS = (
    r"IncrementParams\(fault='{0}'\), case \d {{'by': \d+, 'rows': \d}}: "
    r"\d+ of \d+ tokens of 'o' differ \(.*\)"
)


@pytest.mark.parametrize(
    ("fault", "aspect", "message"),
    [
        (
            "leak",
            "golden",
            "each case is right when it runs alone, so state survives a descriptor: "
            + DIFFERS.format("leak"),
        ),
        (
            "withdraws",
            "golden",
            r"stream 'o', cycle \d+, token \d+: valid fell before the token was taken \(Stalls\(seed=.*\)\)",
        ),
        (
            "curve",
            "promises",
            r"IncrementParams\(fault='curve'\) with {'by': 3, 'rows': 5}:\n  o: token 2 moves in cycle 4, "
            r"but the curve says 5 \(8 of 10 differ; measured \[2, 3, 4, 5, 6, 7\], "
            r"promised \[2, 3, 5, 6, 8, 9\]\)",
        ),
        pytest.param(
            "changes",
            "golden",
            r"stream 'o', cycle \d+, token \d+: payload changed from .* to .* before the token was taken",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "waits",
            "golden",
            r"no token moved for 2012 cycles, at cycle \d+ \(Stalls\(seed=1, .*\)\)\n(.*\n)*o .*  "
            "the sink waits for valid: valid must not wait for ready",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "reset",
            "reset",
            r"after a reset in cycle \d+: " + DIFFERS.format("reset"),
            marks=pytest.mark.slow,
        ),
        pytest.param("golden", "golden", DIFFERS.format("golden"), marks=pytest.mark.slow),
        pytest.param(
            "ii",
            "promises",
            r".*{'by': 3, 'rows': 5}:\n  cost.ii is 2.0, measured 1.000",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "latency", "promises", r".*'rows': 5}:\n  cost.latency is 3, measured 1", marks=pytest.mark.slow
        ),
        pytest.param(
            "cycles", "promises", r".*'rows': 5}:\n  cost.cycles is 13, measured 12", marks=pytest.mark.slow
        ),
        pytest.param(
            "gap",
            "promises",
            r".*'rows': 5}:\n  the next descriptor is taken 6 cycles after the last input token; at most 4",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "lut",
            "resources",
            r"IncrementParams\(fault='lut'\)\n  lut: 250 promised, \d+ found \(\+\d+%\)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "slow",
            "resources",
            r"IncrementParams\(fault='slow'\)\n(.*\n)*  a path has \d+ LUT levels; 8 are allowed: by.* -> o_",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_liars_seen_in_a_run(fault, aspect, message):
    """Its aspect finds each fault, and has no other line."""
    text = "\n".join(caught(IncrementParams(fault=fault), aspects=[aspect]))
    assert re.match(f"{aspect}: {message}", text), text


@pytest.mark.slow
def test_a_rare_value_in_the_cases_is_seen():
    rare = case(3, 5)
    rare[1]["i"][4, 2] = 77
    lines = caught(IncrementParams(fault="value"), [*CASES, rare], aspects=["golden"])
    assert lines[0].startswith(
        "golden: IncrementParams(fault='value'), case 0 {'by': 3, 'rows': 5}: 1 of 10 "
    )
    check(IncrementParams(fault="value"), CASES, aspects=["golden"])


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"^at least one case is needed$"):
        check(IncrementParams(), [])
    known = "params, golden, reset, promises, resources, verilog"
    with pytest.raises(ValueError, match=f"^unknown aspects: goldne; {known} are allowed$"):
        check(IncrementParams(), CASES, aspects=["goldne"])


def test_the_tests_are_one_for_each_aspect():
    marks = conformance_tests(IncrementParams(), CASES).pytestmark
    assert [list(mark.args[1]) for mark in marks] == [list(ASPECTS)]
    conformance_tests(IncrementParams(), CASES, refused=REFUSED)("params")
    with pytest.raises(ConformanceError):
        conformance_tests(IncrementParams(fault="pin"), CASES)("params")


def test_cases_are_not_changed():
    before = [inputs["i"].copy() for _, inputs in CASES]
    check(IncrementParams(), CASES, aspects=["params"])
    assert all(np.array_equal(old, inputs["i"]) for old, (_, inputs) in zip(before, CASES, strict=True))
