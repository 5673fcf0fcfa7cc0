"""Check the main laws of `streamgen.contract` for a kernel: its outputs equal golden, and its promises equal
measurements.

check_golden(params, [(bounds, {"i_x": array}), ...], Stalls(seed=1, sources=0.3, sinks=0.3))
check_promises(params, bounds, {"i_x": array})
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from amaranth.lib.wiring import In, Out

from streamgen.contract import Bounds, KernelParams, descriptor_values
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.testing.bench import Result, Simulated, Stalls, run, stream_ports
from streamgen.testing.stream_simulator import StreamSimulator

Case = tuple[Bounds, Mapping[str, np.ndarray]]


def descriptor_word(params: KernelParams, bounds: Bounds) -> int:
    """The descriptor for `bounds` as one number, the first field in the lowest bits."""
    values = descriptor_values(params, bounds)
    word = shift = 0
    for field in params.descriptor_fields():
        word |= values[field.name] << shift
        shift += field.bits
    return word


def encode_port(itensor: ITensor, array: np.ndarray) -> list[int]:
    """The raw tokens of a tensor on a port, as integers."""
    return formats.encode_ints(itensor.dtype, itensor.to_tokens(array))


def check_golden(
    params: KernelParams,
    cases: Sequence[Case],
    stalls: Stalls | None = None,
    *,
    simulator: StreamSimulator | None = None,
    reset_at: int | None = None,
) -> Result:
    """Run the cases back to back on one component, and compare every output token with golden, bit for bit.

    simulator: a simulator that was built from `params.build()`; by default Amaranth's simulator. reset_at:
    cycle in which everything is reset, to start again from the first token.

    Raises AssertionError with the first token that differs, and the errors of `run`.
    """
    result, expected = _run(params, cases, stalls, simulator, reset_at)
    for port, tokens in expected.items():
        actual = result.tokens[port]
        if actual != [token for part in tokens for token in part]:
            raise AssertionError(_difference(params, cases, port, tokens, actual, stalls))
    return result


def check_promises(
    params: KernelParams,
    bounds: Bounds,
    inputs: Mapping[str, np.ndarray],
    *,
    simulator: StreamSimulator | None = None,
) -> None:
    """Run a case without stalls, and compare its cycles with `cost` and `curves`.

    The case runs twice in a row. For the first execution, the curve of every port, `cost.cycles` and
    `cost.latency` must be exact. `cost.ii` must be the mean distance of tokens on the port with the most
    tokens, within 1 % or one cycle over the whole run. The second descriptor must be taken at most 4 cycles
    after the last input token of the first execution. The outputs of both executions must equal golden.

    Raises AssertionError with all differences.
    """
    result = check_golden(params, [(bounds, inputs), (bounds, inputs)], simulator=simulator)
    start, second = result.cycles["i_descriptor"]
    itensors = {**params.inputs(bounds), **params.outputs(bounds)}
    measured = {
        port: np.asarray(result.cycles[port][: itensor.token_count]) - start
        for port, itensor in itensors.items()
    }
    curves = params.curves(bounds)
    problems = []
    if set(curves) != set(measured):
        problems.append(f"there are curves for {sorted(curves)}; the ports are {sorted(measured)}")
    for port in sorted(set(curves) & set(measured)):
        promised = curves[port].cycles()
        if len(promised) != len(measured[port]):
            problems.append(f"{port}: the curve has {len(promised)} tokens, but {len(measured[port])} moved")
        elif (wrong := np.flatnonzero(promised != measured[port])).size:
            k = int(wrong[0])
            problems.append(
                f"{port}: token {k} moves in cycle {measured[port][k]}, but the curve says {promised[k]} "
                f"({wrong.size} of {len(promised)} differ; measured {_around(measured[port], k)}, "
                f"promised {_around(promised, k)})"
            )
    # Without inputs, the descriptor counts as the first and the last input.
    first_in = min((int(measured[port][0]) for port in params.inputs(bounds)), default=0)
    last_in = max((int(measured[port][-1]) for port in params.inputs(bounds)), default=0)
    first_out = min(int(measured[port][0]) for port in params.outputs(bounds))
    last_out = max(int(measured[port][-1]) for port in params.outputs(bounds))
    cost = params.cost(bounds)
    if cost.cycles != last_out + 1:
        problems.append(f"cost.cycles is {cost.cycles}, measured {last_out + 1}")
    if cost.latency != first_out - first_in:
        problems.append(f"cost.latency is {cost.latency}, measured {first_out - first_in}")
    busiest = max(measured.values(), key=len)
    if len(busiest) > 1:
        gaps = len(busiest) - 1
        ii = float(busiest[-1] - busiest[0]) / gaps
        if abs(cost.ii - ii) > max(0.01 * ii, 1 / gaps):
            problems.append(f"cost.ii is {cost.ii}, measured {ii:.3f}")
    if (gap := second - start - last_in) > 4:
        problems.append(
            f"the next descriptor is taken {gap} cycles after the last input token; at most 4 are allowed"
        )
    if problems:
        raise AssertionError(f"{params} with {dict(bounds)}:\n  " + "\n  ".join(problems))


# Kernels that stay in amaranth's simulator for later checks; the least recently used go first. None by
# default: whoever works on a kernel, and loads its code again, wants to see what it has become.
REMEMBERED = 0
_remembered: OrderedDict[tuple[KernelParams, str], Simulated] = OrderedDict()


def _simulated(params: KernelParams) -> Simulated:
    key = (params, repr(params))  # params that differ in type alone may be equal
    simulated = _remembered.pop(key, None) or Simulated(params.build())
    _remembered[key] = simulated
    while len(_remembered) > REMEMBERED:
        _remembered.popitem(last=False)
    return simulated


def _run(
    params: KernelParams,
    cases: Sequence[Case],
    stalls: Stalls | None,
    simulator: StreamSimulator | None,
    reset_at: int | None,
) -> tuple[Result, dict[str, list[list[int]]]]:
    streams: dict[str, list[int]] = {"i_descriptor": []}
    expected: dict[str, list[list[int]]] = {}
    for bounds, inputs in cases:
        streams["i_descriptor"].append(descriptor_word(params, bounds))
        for port, itensor in params.inputs(bounds).items():
            streams.setdefault(port, []).extend(encode_port(itensor, inputs[port]))
        golden = params.golden(bounds, inputs)
        for port, itensor in params.outputs(bounds).items():
            expected.setdefault(port, []).append(encode_port(itensor, golden[port]))
    counts = {port: sum(map(len, parts)) for port, parts in expected.items()}
    longest = max(params.cost(bounds).cycles for bounds, _ in cases)
    simulate: Callable[..., Result]
    if simulator is None:
        simulated = _simulated(params)
        simulate = partial(run, simulated)
        inputs_of, outputs_of = (stream_ports(simulated.component, flow) for flow in (In, Out))
    else:
        simulate, inputs_of, outputs_of = simulator.run, simulator.inputs, simulator.outputs
    # A port that none of the cases uses stays idle.
    for name in inputs_of:
        streams.setdefault(name, [])
    for name in outputs_of:
        counts.setdefault(name, 0)
    return simulate(streams, counts, stalls=stalls, watchdog=2000 + longest, reset_at=reset_at), expected


def _difference(
    params: KernelParams,
    cases: Sequence[Case],
    port: str,
    expected: Sequence[Sequence[int]],
    actual: Sequence[int],
    stalls: Stalls | None,
) -> str:
    position = 0
    for number, ((bounds, _), tokens) in enumerate(zip(cases, expected, strict=True)):
        itensor = params.outputs(bounds)[port]
        got = actual[position : position + len(tokens)]
        position += len(tokens)
        wrong = [k for k, pair in enumerate(zip(tokens, got, strict=True)) if pair[0] != pair[1]]
        if wrong:
            k = wrong[0]
            golden, rtl = formats.decode_ints(itensor.dtype, [tokens[k], got[k]], itensor.element_shape)
            return (
                f"{params}, case {number} {dict(bounds)}: "
                f"{len(wrong)} of {len(tokens)} tokens of {port!r} differ ({stalls or 'no stalls'})\n"
                f"  first is token {k} at {tuple(map(int, itensor.offsets()[k]))}\n"
                f"  golden {tokens[k]:#x} = {golden.tolist()}\n"
                f"  rtl    {got[k]:#x} = {rtl.tolist()}"
            )
    raise AssertionError("no token differs")


def _around(cycles: np.ndarray, k: int) -> list[int]:
    return [int(cycle) for cycle in cycles[max(k - 2, 0) : k + 4]]
