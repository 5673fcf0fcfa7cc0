"""Run a component with stream ports: send and collect tokens, with stalls, checks of the laws and a watchdog.

    result = run(component, {"i": tokens}, {"o": count}, stalls=Stalls(seed=1, sources=0.3, sinks=0.3))
    result.tokens["o"], result.cycles["o"]

Cycle 0 is the first cycle. Without stalls every input offers a token as long as it has one, and every output
is always ready. The run ends when all tokens have moved and no token has come in the `tail` cycles after
that.

For speed, one loop of the bench drives the slots of amaranth's simulation engine for all streams. Port values
change in the same delta as the registers, so logic settles once a cycle.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from amaranth.hdl import Value
from amaranth.lib import stream, wiring
from amaranth.sim import Simulator

from streamgen.testing.ports import BenchPort, PortSource, Sink, Spy, Stalls


class BenchError(AssertionError):
    """A run failed: an output gave too many tokens, or no token moved."""


class StuckError(BenchError):
    """No token moved until the watchdog ended the run. The message lists every stream."""


@dataclass(frozen=True)
class Result:
    """The results of a run.

    tokens: for each output, its raw tokens. cycles: for each port, the cycle in which each token moved.
    offered: for each output, the cycle in which each token was first valid. probes: for each probe, its value
    in each cycle.
    """

    tokens: dict[str, list[int]]
    cycles: dict[str, list[int]]
    offered: dict[str, list[int]]
    probes: dict[str, list[int]]


def random_tokens(bits: int, count: int, seed: int = 0) -> list[int]:
    """Random tokens for a stream of `bits` bits. The same arguments give the same tokens."""
    random = Random(f"{bits} {count} {seed}")
    return [random.getrandbits(bits) for _ in range(count)]


class Simulated:
    """A component in amaranth's simulator for several runs: to make one takes longer than a short run."""

    def __init__(self, component: wiring.Component) -> None:
        self.component = component
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)  # a signal of n bits can become an expression that Python nests n deep
        self.engine = Simulator(component)._engine
        sys.setrecursionlimit(limit)
        self.clk = self.rst = None
        domain = self.engine._design.fragment.domains.get("sync")
        if domain is not None:
            self.clk = self.slot(domain.clk)
            self.rst = None if domain.rst is None else self.slot(domain.rst)

    def slot(self, signal: Any) -> Any:
        """Where the engine keeps the value of a signal."""
        return self.engine.state.slots[self.engine.state.get_signal(signal)]

    def edge(self, drives: Iterable[Callable[[], object]]) -> None:
        """Clock the registers, which read the values from before, and let the ports drive; settle."""
        if self.clk is not None:
            self.clk.update(1)
            self.engine.state.commit()
        for drive in drives:
            drive()
        self.engine.step_design()
        if self.clk is not None:
            self.clk.update(0)
            self.engine.state.commit()


def run(
    component: wiring.Component | Simulated,
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, int],
    *,
    stalls: Stalls | None = None,
    watchdog: int = 2000,
    tail: int = 24,
    hold: Mapping[str, int] | None = None,
    reset_at: int | None = None,
    watch: Mapping[str, Any] | None = None,
    probes: Sequence[str] = (),
) -> Result:
    """Send `inputs` (raw tokens by port) and collect the given number of tokens from each output.

    watchdog: cycles without any transfer after which the run fails. tail: cycles to simulate after the last
    token. hold: for some ports, the number of first cycles in which they show no valid (inputs) or no ready
    (outputs). reset_at: reset everything in this cycle, and start again from the first token in cycle 0.
    watch: streams inside the component to monitor, by the name for messages. probes: names of attributes of
    the component to record.

    Raises ValueError for ports that do not match, StreamLawError if a stream breaks a law, StuckError if no
    token moves, and BenchError if an output gives too many tokens.
    """
    simulated = component if isinstance(component, Simulated) else Simulated(component)
    component, engine = simulated.component, simulated.engine
    engine.reset()  # registers, memories and whatever an earlier run has left
    _check_ports(component, inputs, outputs)
    hold = hold or {}
    stalls = stalls or Stalls(seed=0)
    remark = repr(stalls)
    common: dict[str, Any] = {"random": Random(stalls.seed), "remark": remark}
    sources = [
        PortSource(
            name, getattr(component, name), engine, chance=stalls.sources, hold=hold.get(name, 0), **common
        )
        for name in inputs
    ]
    sinks = [
        Sink(name, getattr(component, name), engine, chance=stalls.sinks, hold=hold.get(name, 0), **common)
        for name in outputs
    ]
    spies = [Spy(name, inner, engine, chance=0, hold=0, **common) for name, inner in (watch or {}).items()]
    for source in sources:
        source.load(inputs[source.name])
    for sink in sinks:
        sink.count = outputs[sink.name]
    values = {name: Value.cast(getattr(component, name)) for name in probes}
    slots = {name: simulated.slot(value) for name, value in values.items()}
    bench = _Bench(simulated, [*sources, *sinks], spies, slots, remark)
    if reset_at is not None:
        bench.start()
        for cycle in range(reset_at):
            bench.observe(cycle)
            bench.edge()
        bench.reset()
    bench.start()
    cycle = last = 0
    while bench.left or cycle - last <= tail:
        if bench.observe(cycle):
            last = cycle
        elif bench.left and cycle - last >= watchdog:
            raise StuckError(bench.table(cycle, last))
        bench.edge()
        cycle += 1
    return Result(
        tokens={sink.name: sink.tokens for sink in sinks},
        cycles={port.name: port.cycles for port in (*sources, *sinks)},
        offered={sink.name: sink.offered for sink in sinks},
        probes=bench.probes,
    )


def stream_ports(component: wiring.Component, flow: wiring.Flow) -> list[str]:
    """Names of the input streams (wiring.In) or output streams (wiring.Out) of a component."""
    return [
        name
        for name, member in component.signature.members.items()
        if member.flow == flow and member.is_signature and isinstance(member.signature, stream.Signature)
    ]


def _check_ports(
    component: wiring.Component, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, int]
) -> None:
    for flow, given, word in ((wiring.In, inputs, "input"), (wiring.Out, outputs, "output")):
        ports = stream_ports(component, flow)
        if set(ports) != set(given):
            kind = type(component).__name__
            raise ValueError(f"the {word}s of {kind} are {sorted(ports)}, not {sorted(given)}")


class _Bench:
    """The ports and the clock of one run."""

    def __init__(
        self,
        simulated: Simulated,
        ports: Sequence[BenchPort],
        spies: Sequence[BenchPort],
        slots: Mapping[str, Any],
        remark: str,
    ) -> None:
        self._simulated = simulated
        self._ports = ports
        self._drives = [port.drive for port in ports]
        self._spies = spies
        self._slots = slots
        self._remark = remark

    def start(self) -> None:
        """Begin a run and settle in cycle 0."""
        self.probes: dict[str, list[int]] = {name: [] for name in self._slots}
        self.left = sum(port.left for port in self._ports)
        for drive in self._drives:
            drive()
        self._simulated.engine.step_design()

    def observe(self, cycle: int) -> bool:
        """Observe every stream in a settled cycle, and return whether a token moved. Raises BenchError for a
        token that was not expected."""
        moved = False
        for port in self._ports:
            if port.observe(cycle):
                moved = True
                self.left -= 1
                if port.left < 0:
                    raise BenchError(
                        f"stream {port.name!r}, cycle {cycle}: a token too many, "
                        f"{port.count} expected ({self._remark})"
                    )
        for spy in self._spies:
            if spy.observe(cycle):
                moved = True
        for name, slot in self._slots.items():
            self.probes[name].append(slot.curr)
        return moved

    def edge(self) -> None:
        self._simulated.edge(self._drives)

    def reset(self) -> None:
        """Reset for one cycle, in which no port is active."""
        for port in (*self._ports, *self._spies):
            port.begin()
        rst = self._simulated.rst
        if rst is not None:
            rst.update(1)
        self._simulated.engine.step_design()
        self._simulated.edge(())
        if rst is not None:
            rst.update(0)

    def table(self, cycle: int, last: int) -> str:
        """A table with the state of every stream, for an error."""
        ports = [*self._ports, *self._spies]
        width = max(len(name) for name in ("stream", *(port.name for port in ports)))
        lines = [
            f"no token moved for {cycle - last} cycles, at cycle {cycle} ({self._remark})",
            f"{'stream':{width}}  valid ready  tokens left",
        ]
        for port in ports:
            state = f"{port.name:{width}}  {port.valid.curr:5d} {port.ready.curr:5d}  {port.progress():14}"
            lines.append(f"{state}  {port.status()}".rstrip())
        return "\n".join(lines)
