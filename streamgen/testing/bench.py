"""Run a component with stream ports: tokens in, tokens out, stalls, laws, watchdog.

    result = run(component, {"i": tokens}, {"o": count}, stalls=Stalls(seed=1, sources=0.3, sinks=0.3))
    result.tokens["o"], result.cycles["o"]

Cycle 0 is the first cycle. Without stalls every input offers a token as long as it has one and every
output is always ready. The run ends when all tokens have moved and nothing more came in the `tail`
cycles after that.

For speed the bench drives the slots of amaranth's simulation engine itself, one loop for all
streams: port values change in the same delta as the registers, so logic settles once a cycle.
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
    """A run went wrong: a token too many, or no progress."""


class StuckError(BenchError):
    """No token moved for as long as the watchdog waits; the message lists every stream."""


@dataclass(frozen=True)
class Result:
    """What a run saw.

    tokens: of each output. cycles: in which each token of each port moved. offered: in which cycle each
    token of each output was first valid. probes: value by cycle.
    """

    tokens: dict[str, list[int]]
    cycles: dict[str, list[int]]
    offered: dict[str, list[int]]
    probes: dict[str, list[int]]


def random_tokens(bits: int, count: int, seed: int = 0) -> list[int]:
    """Tokens for a stream of `bits` bits, the same for the same arguments."""
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

    watchdog: cycles without any transfer after which the run is given up. tail: cycles to go on after
    the last token. hold: ports that show no valid (no ready) in so many first cycles. reset_at: reset
    everything in this cycle and start again from the first token with cycle 0. watch: streams inside
    the component to monitor, by the name to print. probes: attributes of the component to record.

    Raises ValueError for ports that do not match, StreamLawError, StuckError, BenchError.
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
    """Names of the streams that go into (wiring.In) or out of (wiring.Out) a component."""
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
        """Begin a run: settle in cycle 0."""
        self.probes: dict[str, list[int]] = {name: [] for name in self._slots}
        self.left = sum(port.left for port in self._ports)
        for drive in self._drives:
            drive()
        self._simulated.engine.step_design()

    def observe(self, cycle: int) -> bool:
        """Look at every stream; return whether a token moved."""
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
        """One cycle of reset, in which no port does anything."""
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
        """What every stream is waiting for."""
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
