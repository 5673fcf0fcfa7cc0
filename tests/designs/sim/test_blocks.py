"""Every kind of block over its sweep: resources as promised, no path over 8 LUT levels.

The first case, which is the smallest, of all that differ in more than sizes belongs to `make check`, but for
the dearest kinds; these and other sizes to the campaign, every n-th where synthesis takes long. Norms that
differ in nothing but a bias or in 1 + weight count as alike here. `benchmarks/resources.py` goes over all of
them.
"""

from dataclasses import fields
from typing import Any

import pytest

from sim.blocks import Case, sweep
from streamgen.gateware.arith import Float
from streamgen.kernels.norm.norm import NormParams
from streamgen.testing.synthesis import check_all

SWEEP = sweep()
EVERY = {
    "arith": 3,
    "stream": 3,
    "queue": 2,
    "master": 2,
    "dma": 4,
    "control": 4,
    "elementwise": 5,
    "quantise": 2,
    "converter": 3,
    "norm": 5,
    "rope": 3,
    "quantise rows": 3,
    "dequantise": 3,
    "kv cache": 3,
    "column": 4,
}


LITTLE = ("bias", "plus_one")  # of a norm: a unit more or less beside many, and its synthesis takes minutes


def variant(params: Any) -> tuple[Any, ...]:
    """What hardware it is apart from sizes: the class, names of functions and types, formats, options."""
    little = LITTLE if isinstance(params, NormParams) else ()
    values = [getattr(params, field.name) for field in fields(params) if field.name not in little]
    return type(params), *(
        value for value in values if value is None or isinstance(value, str | bool | Float)
    )


def firsts(cases: list[Case]) -> list[Case]:
    """The first case of each variant."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in cases:
        found.setdefault(variant(case[0]), case)
    return list(found.values())


def sizes(cases: list[Case], every: int) -> list[Case]:
    """Every n-th of the other cases."""
    found = firsts(cases)
    return [case for case in cases if not any(case is first for first in found)][every - 1 :: every]


FIRSTS = {kind: firsts(cases) for kind, cases in SWEEP.items()}
SIZES = {kind: sizes(cases, EVERY.get(kind, 1)) for kind, cases in SWEEP.items()}
AT_A_TIME = 9  # cases in one run of Yosys


def parts(cases: dict[str, list[Case]]) -> list[list[Case]]:
    """Of all kinds in their order: the start of Yosys takes as long as a small block."""
    flat = [case for kind in cases.values() for case in kind]
    return [flat[first : first + AT_A_TIME] for first in range(0, len(flat), AT_A_TIME)]


def label(cases: list[Case]) -> str:
    first, last = (type(cases[k][0]).__name__.removesuffix("Params") for k in (0, -1))
    return first if first == last else f"{first} to {last}"


# The first cases of these take minutes.
DEAREST = {
    "function in other formats",
    "client",
    "master",
    "dma",
    "control",
    "elementwise",
    "group codes",
    "quantise",
    "converter",
    "norm",
    "embedding",
    "rope",
    "row codes",
    "quantise rows",
    "dequantise",
    "kv cache",
    "memory",
    "softmax blocks",
    "softmax",
    "attention blocks",
    "attention",
    "top k",
}
CHEAP = parts({kind: cases for kind, cases in FIRSTS.items() if kind not in DEAREST})
DEAR = parts({kind: cases for kind, cases in FIRSTS.items() if kind in DEAREST})


@pytest.mark.slow
@pytest.mark.parametrize("cases", CHEAP, ids=label)
def test_promises_within_a_fifth(cases: list[Case]) -> None:
    check_all(cases)


@pytest.mark.campaign
@pytest.mark.parametrize("cases", DEAR, ids=label)
def test_promises_of_the_dearest(cases: list[Case]) -> None:
    check_all(cases)


@pytest.mark.campaign
@pytest.mark.parametrize("cases", parts(SIZES), ids=label)
def test_promises_of_sizes(cases: list[Case]) -> None:
    check_all(cases)


def test_every_variant_is_chosen() -> None:
    assert SWEEP.keys() > DEAREST
    for kind, cases in SWEEP.items():
        assert {variant(params) for params, _ in FIRSTS[kind]} == {variant(params) for params, _ in cases}
        assert len(FIRSTS[kind]) + len(SIZES[kind]) == len(cases) or EVERY.get(kind, 1) > 1
    names = {variant(params)[1:] for params, _ in FIRSTS["elementwise"]}
    assert {("gelu",), ("sigmoid",), ("gelu_tanh_multiply",), ("soft_cap",)} < names


def test_the_sweep_has_every_block_once() -> None:
    cases = [case for cases in SWEEP.values() for case in cases]
    assert len({params for params, _ in cases}) == len(cases) > 250
