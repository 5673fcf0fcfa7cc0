"""Run a component with stream ports: tokens in, tokens out, stalls, laws, watchdog.

    result = run(component, {"i": tokens}, {"o": count}, stalls=Stalls(seed=1, sources=0.3, sinks=0.3))
    result.tokens["o"], result.cycles["o"]

Cycle 0 is the first cycle. Without stalls every input offers a token as long as it has one and every
output is always ready. The run ends when all tokens have moved and nothing more came in the `tail`
cycles after that.

For speed the bench drives the slots of amaranth's simulation engine itself, one loop for all
streams: port values change in the same delta as the registers, so logic settles once a cycle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from random import Random
from typing import Any

from amaranth.hdl import Value
from amaranth.lib import stream, wiring
from amaranth.sim import Simulator

from sim.monitor import StreamMonitor

__all__ = ["BenchError", "Result", "Stalls", "StuckError", "run"]


class BenchError(AssertionError):
    """A run went wrong: too many tokens, or tokens left over."""


class StuckError(BenchError):
    """No token moved for as long as the watchdog waits; the message lists every stream."""


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Random pauses, the same for the same seed.

    sources, sinks: the chance that an input (output) pauses after a token. Most pauses last 1-4 cycles,
    one in 16 lasts up to 40, so that queues run both empty and full. A sink that pauses may also keep
    `ready` low until it sees `valid`, which stops a component whose valid waits for ready.
    """

    seed: int
    sources: float = 0.0
    sinks: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sources", "sinks"):
            chance = getattr(self, name)
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{name} must be a chance from 0 to 1, not {chance!r}")


@dataclass(frozen=True)
class Result:
    """What a run saw: the tokens of each output, the transfer cycles of each port, probe values by cycle."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    cycles: dict[str, list[int]] = field(default_factory=dict)
    probes: dict[str, list[int]] = field(default_factory=dict)


class _Port:
    """A stream port: its slots in the engine, its monitor, its tokens, its pauses."""

    def __init__(self, name: str, interface: Any, engine: Any, chance: float, random: Random, remark: str):
        payload = Value.cast(interface.payload)
        state = engine.state
        self.name = name
        self.valid, self.ready, self.payload = (
            state.slots[state.get_signal(signal)]
            for signal in (Value.cast(interface.valid), Value.cast(interface.ready), payload)
        )
        self.width = len(payload)
        self.mask = (1 << self.width) - 1
        self.monitor = StreamMonitor(name, remark)
        self.chance = chance
        self.random = random
        self.pause = 0
        self.waits = False
        self.count = 0
        self.tokens: list[int] = []
        self.cycles: list[int] = []
        self.draw_pause()

    def draw_pause(self) -> None:
        random = self.random
        if random.random() < self.chance:
            self.pause = random.randrange(5, 41) if random.random() < 1 / 16 else random.randrange(1, 5)
            self.waits = random.random() < 0.25

    def restart(self) -> None:
        self.monitor.reset()
        self.pause = 0
        self.waits = False
        self.draw_pause()
        self.cycles.clear()

    @property
    def left(self) -> int:
        return self.count - len(self.cycles)


class _Source(_Port):
    """Feeds an input."""

    def load(self, tokens: Sequence[int]) -> None:
        self.tokens = [index(token) for token in tokens]
        self.count = len(self.tokens)
        for k, token in enumerate(self.tokens):
            if not 0 <= token <= self.mask:
                raise ValueError(
                    f"token {k} of {self.name!r} is {token:#x}; the stream has {self.width} bits"
                )

    def observe(self, cycle: int) -> bool:
        if self.valid.curr and self.ready.curr:
            self.cycles.append(cycle)
            if self.chance:
                self.draw_pause()
            return True
        return False

    def drive(self) -> None:
        if self.pause:
            self.pause -= 1
            self.valid.update(0)
        elif len(self.cycles) < self.count:
            self.valid.update(1)
            self.payload.update(self.tokens[len(self.cycles)])
        else:
            self.valid.update(0)

    def restart(self) -> None:
        super().restart()
        self.valid.update(0)

    def status(self) -> str:
        if self.valid.curr:
            return "the component does not take the token"
        return "the component waits, no token is left" if self.ready.curr else ""


class _Sink(_Port):
    """Drains an output."""

    def observe(self, cycle: int) -> bool:
        valid = self.valid.curr
        payload = self.payload.curr & self.mask
        if self.monitor.observe(cycle, valid, self.ready.curr, payload):
            self.cycles.append(cycle)
            self.tokens.append(payload)
            if self.chance:
                self.draw_pause()
            return True
        if valid:
            self.waits = False
        return False

    def drive(self) -> None:
        if self.pause:
            self.pause -= 1
            self.ready.update(0)
        else:
            self.ready.update(0 if self.waits else 1)

    def restart(self) -> None:
        super().restart()
        self.tokens.clear()
        self.ready.update(0)

    def status(self) -> str:
        if self.left <= 0:
            return ""
        if self.waits:
            return "the sink waits for valid before it raises ready: valid must not wait for ready"
        return "the bench waits for the component"


class _Spy(_Port):
    """Watches a stream inside the component."""

    def observe(self, cycle: int) -> bool:
        return self.monitor.observe(cycle, self.valid.curr, self.ready.curr, self.payload.curr & self.mask)

    def drive(self) -> None:
        pass

    def status(self) -> str:
        if self.valid.curr:
            return "the producer waits for the consumer"
        return "the consumer waits for the producer" if self.ready.curr else "both wait"


def run(
    component: wiring.Component,
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, int],
    *,
    stalls: Stalls | None = None,
    watchdog: int = 2000,
    tail: int = 24,
    reset_at: int | None = None,
    watch: Mapping[str, Any] | None = None,
    probes: Sequence[str] = (),
) -> Result:
    """Send `inputs` (raw tokens by port) and collect the given number of tokens from each output.

    watchdog: cycles without any transfer after which the run is given up. tail: cycles to go on after
    the last token. reset_at: in this cycle reset everything and start again from the first token with
    cycle 0. watch: streams inside the component to monitor, by the name to print. probes: attributes
    of the component to record once a cycle.

    Raises ValueError for ports that do not match, StreamLawError, StuckError, BenchError.
    """
    _check_ports(component, inputs, outputs)
    engine = Simulator(component)._engine
    random = Random(stalls.seed if stalls else 0)
    remark = repr(stalls) if stalls else "no stalls"
    ports: list[_Source | _Sink | _Spy] = []
    for name, tokens in inputs.items():
        source = _Source(
            name, getattr(component, name), engine, stalls.sources if stalls else 0, random, remark
        )
        source.load(tokens)
        ports.append(source)
    for name, count in outputs.items():
        sink = _Sink(name, getattr(component, name), engine, stalls.sinks if stalls else 0, random, remark)
        sink.count = count
        ports.append(sink)
    ports += [_Spy(name, interface, engine, 0, random, remark) for name, interface in (watch or {}).items()]
    slots = engine.state.slots
    probe_slots = {
        name: slots[engine.state.get_signal(Value.cast(getattr(component, name)))] for name in probes
    }
    clock = _Clock(engine)
    if reset_at is not None:
        _loop(ports, clock, {}, watchdog, tail, remark, stop=reset_at)
        for port in ports:
            port.restart()
        clock.reset()
    values: dict[str, list[int]] = {name: [] for name in probes}
    _loop(ports, clock, {slot: values[name] for name, slot in probe_slots.items()}, watchdog, tail, remark)
    return Result(
        tokens={port.name: port.tokens for port in ports if isinstance(port, _Sink)},
        cycles={port.name: port.cycles for port in ports if not isinstance(port, _Spy)},
        probes=values,
    )


def _check_ports(
    component: wiring.Component, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, int]
) -> None:
    for flow, names, word in ((wiring.In, inputs, "input"), (wiring.Out, outputs, "output")):
        members = component.signature.members.items()
        ports = {
            name
            for name, m in members
            if m.flow == flow and m.is_signature and isinstance(m.signature, stream.Signature)
        }
        if ports != set(names):
            raise ValueError(
                f"the {word}s of {type(component).__name__} are {sorted(ports)}, not {sorted(names)}"
            )


class _Clock:
    """Steps the engine one cycle; the ports' updates made before `edge` take effect with the registers."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._state = engine.state
        self._clk = self._rst = None
        domain = engine._design.fragment.domains.get("sync")
        if domain is not None:
            self._clk = self._state.slots[self._state.get_signal(domain.clk)]
            if domain.rst is not None:
                self._rst = self._state.slots[self._state.get_signal(domain.rst)]
        self._engine.step_design()

    def edge(self, ports: Sequence[Any]) -> None:
        state = self._state
        if self._clk is not None:
            self._clk.update(1)
            state.commit()  # wakes the registers, which will read the values from before the edge
        for port in ports:
            port.drive()
        self._engine.step_design()
        if self._clk is not None:
            self._clk.update(0)
            state.commit()

    def reset(self) -> None:
        self._engine.step_design()
        if self._rst is not None:
            self._rst.update(1)
            self._engine.step_design()
            self.edge(())
            self._rst.update(0)
            self._engine.step_design()


def _loop(
    ports: Sequence[Any],
    clock: _Clock,
    probes: Mapping[Any, list[int]],
    watchdog: int,
    tail: int,
    remark: str,
    stop: int | None = None,
) -> None:
    """Cycles 0, 1, 2 …, until all tokens have moved or before cycle `stop`."""
    for port in ports:
        port.drive()
    clock._engine.step_design()
    cycle = last = 0
    left = sum(port.left for port in ports if not isinstance(port, _Spy))
    while cycle != stop:
        for port in ports:
            if port.observe(cycle):
                last = cycle
                if not isinstance(port, _Spy):
                    if port.left < 0:
                        raise BenchError(
                            f"stream {port.name!r}, cycle {cycle}: "
                            f"a token too many, {port.count} expected ({remark})"
                        )
                    left -= 1
        for slot, values in probes.items():
            values.append(slot.curr)
        if not left and cycle - last >= tail and stop is None:
            return
        if left and cycle - last >= watchdog:
            raise StuckError(_table(ports, cycle, last, remark))
        clock.edge(ports)
        cycle += 1


def _table(ports: Sequence[Any], cycle: int, last: int, remark: str) -> str:
    width = max(len(port.name) for port in ports)
    lines = [
        f"no token moved for {cycle - last} cycles, at cycle {cycle} ({remark})",
        f"{'stream':{width}}  valid ready  tokens left",
    ]
    for port in ports:
        left = f"{port.monitor.tokens} moved" if isinstance(port, _Spy) else f"{port.left} of {port.count}"
        state = f"{port.name:{width}}  {port.valid.curr:5d} {port.ready.curr:5d}  {left:14}"
        lines.append(f"{state}  {port.status()}".rstrip())
    return "\n".join(lines)
