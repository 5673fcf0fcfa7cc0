"""Check a kernel, of streamgen or of a user, against the whole contract (`streamgen.contract`).

    check(params, cases)                            raises ConformanceError, which lists all problems
    test_clip = conformance_tests(params, cases)    the same as tests of pytest, one for each aspect

A case is (bounds, {port: array}). Two to six cases are best, which differ in every field of the descriptor.
Every ordered pair of them runs back to back. Verilator runs the emitted Verilog.

params      the params have all methods, are frozen, and can be loaded from a written accelerator; the
            component has the right ports; `describe` refuses the bounds that it must refuse; fields hold
            their values; curves rise; golden does not change its inputs
golden      outputs equal golden bit for bit: for each case alone, for random sequences, and with random
            stalls; streams keep the laws; no state survives a descriptor
reset       the outputs are also right after a reset in mid-run
promises    latency, cycles, II and the cycle of every token are those of `cost` and `curves`, and those of
            the clocks that predictions use
resources   `cost` is within 20 % of synthesis, and no path has more than 8 LUT levels
verilog     the text is the same each time, and Verilator's lint has no complaint
"""

import dataclasses
import json
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.compiler.emit.ports import port_problems
from streamgen.contract import Bounds, KernelParams, completes, descriptor_values, missing_methods
from streamgen.model.graph.curves import curve_problems
from streamgen.model.graph.storage import decode_value, encode_value
from streamgen.testing.bench import Stalls, stream_ports
from streamgen.testing.clocks import check_clocks
from streamgen.testing.kernel import Case, check_golden, check_promises, encode_port
from streamgen.testing.lint import lint
from streamgen.testing.stream_simulator import StreamSimulator
from streamgen.testing.synthesis import check_resources

_STALLS = ((0.5, 0.0), (0.0, 0.5), (0.3, 0.3), (0.8, 0.9))
_LONGEST = 37  # executions in a sequence: all ordered pairs of six cases
_RESETS = 6


class ConformanceError(AssertionError):
    """A kernel breaks laws or promises. The message names the kernel, the port, the promise and the
    measurement."""


def check(
    params: KernelParams,
    cases: Sequence[Case],
    *,
    refused: Sequence[Bounds] = (),
    seed: int = 0,
    aspects: Sequence[str] | None = None,
) -> None:
    """Check a kernel. Raises ConformanceError, which lists all breaches of the contract.

    refused: bounds that `describe` must refuse with a ValueError. seed: seed of stalls, sequences and resets.
    aspects: names in ASPECTS; by default all aspects. `params` is always checked first.

    Raises ValueError for an unknown aspect, or without cases.
    """
    chosen = tuple(ASPECTS) if aspects is None else tuple(aspects)
    if unknown := set(chosen) - set(ASPECTS):
        raise ValueError(f"unknown aspects: {', '.join(sorted(unknown))}; {', '.join(ASPECTS)} are allowed")
    if not cases:
        raise ValueError("at least one case is needed")
    label = f"{type(params).__name__} {params!r} with seed {seed}"
    problems = [f"params: {text}" for text in _problems_of_params(params, cases, refused)]
    for aspect in () if problems else chosen:
        try:
            ASPECTS[aspect](params, cases, seed)
        except AssertionError as error:
            problems.append(f"{aspect}: {error}")
    if problems:
        text = "\n".join(problems).replace("\n", "\n  ")
        raise ConformanceError(f"{label} does not conform:\n  {text}")


def conformance_tests(
    params: KernelParams, cases: Sequence[Case], *, refused: Sequence[Bounds] = (), seed: int = 0
) -> Callable[[str], None]:
    """`check` as a test function of pytest, with one run for each aspect."""
    import pytest  # the rest of the kit works without it

    @pytest.mark.parametrize("aspect", ASPECTS)
    def test(aspect: str) -> None:
        check(params, cases, refused=refused, seed=seed, aspects=[aspect])

    return test


def _problems_of_params(params: KernelParams, cases: Sequence[Case], refused: Sequence[Bounds]) -> list[str]:
    if missing := missing_methods(params):
        return [f"there is no method {name}" for name in missing]
    problems = _problems_of_dataclass(params)
    for bounds in refused:
        with suppress(ValueError):
            problems.append(f"describe accepts {dict(bounds)}: {dict(params.describe(bounds))}")
    for number, (bounds, inputs) in enumerate(cases):
        try:
            problems += [f"case {number}: {text}" for text in _problems_of_case(params, bounds, inputs)]
        except ValueError as error:
            problems.append(f"case {number} {dict(bounds)}: {error}")
    return problems or _problems_of_component(params, cases)


def _problems_of_dataclass(params: Any) -> list[str]:
    """Problems of the dataclass: it must be frozen, equal after writing and loading, and its repr, which
    names the Verilog module, must hold every field."""
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        return ["the params are not an instance of a dataclass"]
    if not type(params).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return ["the dataclass is not frozen"]
    hidden = [f.name for f in dataclasses.fields(params) if f.compare and not f.repr]
    problems = [f"field {name!r} is not in the repr, which names the module" for name in hidden]
    try:
        again = decode_value(json.loads(json.dumps(encode_value(params))), (type(params).__module__,))
    except GraphError as error:
        return [*problems, f"a written accelerator could not be loaded: {error}"]
    if again != params or hash(again) != hash(params):
        problems.append(f"the params differ after they were written and loaded: {again}")
    return problems


def _problems_of_case(params: KernelParams, bounds: Bounds, inputs: Mapping[str, np.ndarray]) -> list[str]:
    descriptor_values(params, bounds)
    ins, outs = params.inputs(bounds), params.outputs(bounds)
    if set(ins) != set(inputs):
        return [f"the inputs are {sorted(ins)}; the case has {sorted(inputs)}"]
    tokens = {name: itensor.token_count for name, itensor in {**ins, **outs}.items()}
    problems = curve_problems(params.curves(bounds), tokens)
    before = {port: array.copy() for port, array in inputs.items()}
    golden = params.golden(bounds, inputs)
    if set(golden) != set(outs):
        return [*problems, f"golden returns {sorted(golden)}; the outputs are {sorted(outs)}"]
    problems += [
        f"{port}: golden changes its input"
        for port, array in inputs.items()
        if array.tobytes() != before[port].tobytes()
    ]
    again = params.golden(bounds, before)
    for port, itensor in outs.items():
        if encode_port(itensor, golden[port]) != encode_port(itensor, again[port]):
            problems.append(f"{port}: golden returns another result the second time")
    return problems


def _problems_of_component(params: KernelParams, cases: Sequence[Case]) -> list[str]:
    try:
        component = params.build()
    except ValueError as error:
        return [str(error)]
    component._MustUse__used = True  # only its ports are read
    inputs = {name: it.token_bits for bounds, _ in cases for name, it in params.inputs(bounds).items()}
    outputs = {name: it.token_bits for bounds, _ in cases for name, it in params.outputs(bounds).items()}
    problems = port_problems(params, component, inputs, outputs)
    known = {*inputs, *outputs, "i_descriptor", *(("done",) if completes(params) else ())}
    for name in component.signature.members:
        if name not in known:
            streams = stream_ports(component, component.signature.members[name].flow)
            why = "no case uses this port" if name in streams else "a kernel may only have streams"
            problems.append(f"{name}: {why}")
    resources = {params.cost(bounds).resources for bounds, _ in cases}
    if len(resources) > 1:
        problems.append(
            f"cost promises different resources for different bounds: {sorted(map(str, resources))}"
        )
    return problems


def _golden(params: KernelParams, cases: Sequence[Case], seed: int) -> None:
    simulator = _simulator(params)
    for case in cases:
        check_golden(params, [case], simulator=simulator)
    draw = random.Random(seed)
    try:
        check_golden(params, _sequence(cases, draw), simulator=simulator)
    except AssertionError as error:
        raise AssertionError(
            f"each case is right when it runs alone, so state survives a descriptor: {error}"
        ) from error
    for number, (sources, sinks) in enumerate(_STALLS):
        stalls = Stalls(seed=10 * seed + number, sources=sources, sinks=sinks)
        check_golden(params, _sequence(cases, draw), stalls, simulator=simulator)


def _reset(params: KernelParams, cases: Sequence[Case], seed: int) -> None:
    simulator = _simulator(params)
    draw = random.Random(seed)
    result = check_golden(params, cases, simulator=simulator)
    end = max(cycles[-1] for cycles in result.cycles.values() if cycles)
    for number in range(_RESETS):
        stalls = Stalls(seed=10 * seed + number, sources=0.2, sinks=0.2) if number % 2 else None
        cycle = draw.randint(1, end)
        try:
            check_golden(params, cases, stalls, simulator=simulator, reset_at=cycle)
        except AssertionError as error:
            raise AssertionError(f"after a reset in cycle {cycle}: {error}") from error


def _promises(params: KernelParams, cases: Sequence[Case], seed: int) -> None:
    for bounds, inputs in cases:
        check_promises(params, bounds, inputs, simulator=_simulator(params))
        check_clocks(params, bounds)


def _resources(params: KernelParams, cases: Sequence[Case], seed: int) -> None:
    check_resources(params, cases[0][0])


def _verilog(params: KernelParams, cases: Sequence[Case], seed: int) -> None:
    first, again = _simulator(params), StreamSimulator.translate(params.build())
    if (first.verilog, first.sources) != again:
        raise AssertionError("the emitted Verilog differs the second time")
    lint(first.verilog, "top", first.sources)


ASPECTS: dict[str, Callable[[KernelParams, Sequence[Case], int], None]] = {
    "params": lambda params, cases, seed: None,  # `check` always does it first
    "golden": _golden,
    "reset": _reset,
    "promises": _promises,
    "resources": _resources,
    "verilog": _verilog,
}


def _sequence(cases: Sequence[Case], draw: random.Random) -> list[Case]:
    """A sequence in which each case follows each case and itself; random cases if that would be too long."""
    order = draw.sample(cases, len(cases))
    if len(cases) ** 2 >= _LONGEST:
        return [draw.choice(order) for _ in range(_LONGEST)]
    pairs = [(case, other) for k, case in enumerate(order) for other in order[k + 1 :]]
    walks = [(first, *chain(*(pair for pair in pairs if pair[0] is first))) for first in order]
    return [*chain(*walks), order[0]]


def _simulator(params: KernelParams) -> StreamSimulator:
    return _built(cast(Hashable, params))


@lru_cache(maxsize=4)
def _built(params: Any) -> StreamSimulator:
    return StreamSimulator(params.build())
