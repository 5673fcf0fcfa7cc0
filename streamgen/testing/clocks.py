"""The clocks of a single kernel: the cycles in which predictions move its tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.explore.tokens import Fifo, TokenRun
from streamgen.contract import Bounds
from streamgen.fifo.clocks import Clocks, clocks_of
from streamgen.fifo.curves import KernelSide


def token_times(
    params: Any,
    bounds: Bounds,
    offered: Mapping[str, Any] | None = None,
    room: Mapping[str, Any] | None = None,
) -> Mapping[str, np.ndarray]:
    """For each port of a kernel, the predicted cycle of each token, int [tokens]. offered: for some inputs,
    the cycle in which each token arrives; by default all tokens arrive at once. room: for some outputs, the
    cycle in which a FIFO of depth 1 behind the port passes on each token; by default the port is always
    ready."""
    offered, room = offered or {}, room or {}
    inputs, outputs = params.inputs(bounds), params.outputs(bounds)
    executions = {"kernel": {0: clocks_of(params, bounds)}}
    fifos = []
    for port, itensor in {**inputs, **outputs}.items():
        known = {**offered, **room}.get(port)
        cycles = np.arange(itensor.token_count) if known is None else np.asarray(known)
        part = KernelSide("outside", cycles, None)
        executions[port] = {0: Clocks((part,), {"i": (part, np.arange(len(cycles)))})}
        ends = [(port, "i"), ("kernel", port)]
        source, target = ends if port in inputs else reversed(ends)
        fifos.append(Fifo(source, target, 0, int(port in room)))
    run = TokenRun([0], executions, fifos, MemoryTiming(beats=1, cycles=1, latency=0), {}, times=True)
    return {
        **{port: run.taken(k) for k, port in enumerate(inputs)},
        **{port: run.sent(k) for k, port in enumerate(outputs, len(inputs))},
    }


def check_clocks(params: Any, bounds: Bounds) -> None:
    """Check that the clocks of a kernel without stalls agree with its curves. Raises AssertionError that
    names the first token whose cycles differ."""
    times = token_times(params, bounds)
    for port, curve in params.curves(bounds).items():
        wrong = np.flatnonzero(times[port] != curve.cycles())
        if wrong.size:
            k = int(wrong[0])
            raise AssertionError(
                f"{port}: by its clocks token {k} moves in cycle {times[port][k]}, but the curve says "
                f"{curve.cycles()[k]}"
            )
