"""Benches for components with AXI pins in amaranth's simulator: memory, host, streams, one loop.

    bench = AxiBench(component)
    bench.memory(component.m_axi, Channel(model, 0, buffers))
    bench.source(component.i_command, [...])
    sink = bench.sink(component.o, count)
    bench.run()

Every agent samples the settled values of a cycle and drives the next one, as registers do. A run ends
when all agents have finished; the watchdog names those that have not.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from amaranth.hdl import Signal, Value
from amaranth.lib import wiring

from sim.memory import Channel, MasterPins
from streamgen.testing.bench import BenchError, Simulated, StuckError
from streamgen.testing.monitor import StreamMonitor

__all__ = ["Agent", "AxiBench", "Host", "Memory", "Sink", "Source"]


class Agent(Protocol):
    """name: for messages. signals: what it samples. step: sees their values, calls `drive(signal, value)`."""

    name: str
    signals: Sequence[Any]

    def step(self, cycle: int, values: Sequence[int], drive: Callable[[Any, int], None]) -> bool:
        """One clock edge; returns whether something moved."""

    def left(self) -> str:
        """What is still to do; empty when nothing is."""


class Memory:
    """A memory channel on the pins of a master."""

    def __init__(self, name: str, pins: Any, channel: Channel) -> None:
        self.name, self._pins, self.channel = name, pins, channel
        self._names = list(MasterPins.__dataclass_fields__)
        self.signals = [getattr(pins, name) for name in self._names]
        self.bursts: list[tuple[int, str, int, int, int]] = []
        """cycle, "ar" or "aw", address, beats, id of each burst accepted"""

    def step(self, cycle: int, values: Sequence[int], drive: Callable[[Any, int], None]) -> bool:
        master = MasterPins(**dict(zip(self._names, values, strict=True)))
        before = self.channel.pins
        moved = False
        for a in ("ar", "aw"):
            if getattr(master, a + "valid") and getattr(before, a + "ready"):
                address, length, number = (getattr(master, a + part) for part in ("addr", "len", "id"))
                self.bursts.append((cycle, a, address, length + 1, number))
                moved = True
        moved |= bool(master.wvalid and before.wready) or bool(master.rready and before.rvalid)
        for name, value in vars(self.channel.step(master)).items():
            drive(getattr(self._pins, name), value)
        return moved

    def left(self) -> str:
        return ""


class Source:
    """Feeds a stream."""

    def __init__(self, name: str, interface: Any, tokens: Iterable[int], chance: float, random: Random):
        self.name, self._interface = name, interface
        self.signals = [interface.valid, interface.ready]
        self.tokens = list(tokens)
        self.cycles: list[int] = []
        self._chance, self._random = chance, random
        self._shown = False

    def step(self, cycle: int, values: Sequence[int], drive: Callable[[Any, int], None]) -> bool:
        moved = bool(values[0] and values[1])
        if moved:
            self.cycles.append(cycle)
            self._shown = False
        if not self._shown:
            more = len(self.cycles) < len(self.tokens)
            self._shown = more and self._random.random() >= self._chance
            drive(self._interface.valid, int(self._shown))
            if self._shown:
                drive(self._interface.payload, self.tokens[len(self.cycles)])
        return moved

    def left(self) -> str:
        count = len(self.tokens) - len(self.cycles)
        return f"{count} tokens to send" if count else ""


class Sink:
    """Drains a stream, holding it to the stream laws."""

    def __init__(self, name: str, interface: Any, count: int, chance: float, random: Random):
        self.name, self._interface, self.count = name, interface, count
        self.signals = [interface.valid, interface.ready, interface.payload]
        self._monitor = StreamMonitor(name)
        self.tokens: list[int] = []
        self.cycles: list[int] = []
        self._chance, self._random = chance, random

    def step(self, cycle: int, values: Sequence[int], drive: Callable[[Any, int], None]) -> bool:
        moved = self._monitor.observe(cycle, *values)
        if moved:
            self.tokens.append(values[2])
            self.cycles.append(cycle)
            if len(self.tokens) > self.count:
                raise BenchError(
                    f"stream {self.name!r}, cycle {cycle}: a token too many, {self.count} expected"
                )
        drive(self._interface.ready, int(self._random.random() >= self._chance))
        return moved

    def left(self) -> str:
        count = self.count - len(self.tokens)
        return f"{count} tokens to come" if count else ""


class Host:
    """An AXI4-Lite master that runs a generator: yield ("write", address, value[, strobe]), ("read", address)
    or ("wait",), get the value read back. `skew` cycles lie between the address and the data of a write."""

    def __init__(self, name: str, pins: Any, program: Any, random: Random | None = None) -> None:
        self.name, self._pins, self._program = name, pins, program
        self._names = ["awready", "wready", "bvalid", "bresp", "arready", "rvalid", "rdata", "rresp"]
        self.signals = [getattr(pins, name) for name in self._names]
        self._random = random
        self._driven = {name: 0 for name in ("awvalid", "wvalid", "bready", "arvalid", "rready")}
        self._request: Any = None
        self._finished = False
        self._started = False

    def step(self, cycle: int, values: Sequence[int], drive: Callable[[Any, int], None]) -> bool:
        see = dict(zip(self._names, values, strict=True))
        moved = False
        answer: int | None = None
        for a in ("aw", "w", "ar"):
            if self._driven[a + "valid"] and see[a + "ready"]:
                self._set(drive, a + "valid", 0)
                moved = True
        for a in ("b", "r"):
            if self._driven[a + "ready"] and see[a + "valid"]:
                if see[a + "resp"]:
                    raise BenchError(f"{self.name}, cycle {cycle}: {a}resp is {see[a + 'resp']}")
                self._set(drive, a + "ready", 0)
                answer, moved, self._request = see["rdata"], True, None
        if self._request == ("wait",):
            self._request, answer = None, 0
        if self._request is None and not self._finished:
            self._next(answer, drive)
        elif self._pending:
            for pin in list(self._pending):
                if not self._random or self._random.random() < 0.4:
                    self._pending.remove(pin)
                    self._set(drive, pin, 1)
        return moved

    def _next(self, answer: int | None, drive: Callable[[Any, int], None]) -> None:
        try:
            self._request = self._program.send(answer) if self._started else next(self._program)
        except StopIteration:
            self._finished = True
            return
        self._started = True
        self._pending: list[str] = []
        if self._request[0] == "write":
            _, address, value, *strobe = self._request
            drive(self._pins.awaddr, address)
            drive(self._pins.wdata, value)
            drive(self._pins.wstrb, strobe[0] if strobe else 0xF)
            self._pending = ["awvalid", "wvalid", "bready"]
        elif self._request[0] == "read":
            drive(self._pins.araddr, self._request[1])
            self._pending = ["arvalid", "rready"]

    def _set(self, drive: Callable[[Any, int], None], pin: str, value: int) -> None:
        self._driven[pin] = value
        drive(getattr(self._pins, pin), value)

    def left(self) -> str:
        return "" if self._finished else f"waiting for {self._request}"


class AxiBench:
    """Agents around a component, stepped in one loop. seed, chance: of the pauses of sources and sinks."""

    def __init__(
        self, component: wiring.Component | Simulated, *, seed: int = 0, chance: float = 0.0
    ) -> None:
        self._simulated = component if isinstance(component, Simulated) else Simulated(component)
        self._random = Random(seed)
        self._chance = chance
        self._agents: list[Any] = []
        self.cycle = 0

    def add(self, agent: Any) -> Any:
        """Add an agent of one's own."""
        self._agents.append(agent)
        return agent

    def memory(self, pins: Any, channel: Channel, name: str = "memory") -> Memory:
        return self.add(Memory(name, pins, channel))

    def source(self, interface: Any, tokens: Iterable[int], name: str = "source") -> Source:
        return self.add(Source(name, interface, tokens, self._chance, self._random))

    def sink(self, interface: Any, count: int, name: str = "sink") -> Sink:
        return self.add(Sink(name, interface, count, self._chance, self._random))

    def host(self, pins: Any, program: Any, *, skew: bool = False) -> Host:
        return self.add(Host("host", pins, program, self._random if skew else None))

    def run(self, *, watchdog: int = 2000, tail: int = 24) -> int:
        """Run until no agent has anything left, then `tail` cycles; returns the cycles run."""
        engine = self._simulated.engine
        engine.reset()
        engine.step_design()
        samples = [[self._sample(Value.cast(signal)) for signal in agent.signals] for agent in self._agents]
        driven: dict[int, tuple[Value, int]] = {}  # by id; holds the signals, so that ids stay theirs
        changes: list[Callable[[], object]] = []

        def drive(signal: Any, value: int) -> None:
            target = Value.cast(signal)
            if driven.get(id(target), (target, None))[1] != value:
                driven[id(target)] = target, value
                changes.append(partial(engine.set_value, target, value))

        quiet = finished = 0
        while True:
            moved = False
            changes.clear()
            for agent, signals in zip(self._agents, samples, strict=True):
                moved |= agent.step(self.cycle, [sample() for sample in signals], drive)
            self._simulated.edge(changes)
            self.cycle += 1
            quiet = 0 if moved else quiet + 1
            open_ = [f"{agent.name}: {left}" for agent in self._agents if (left := agent.left())]
            finished = 0 if open_ else finished + 1
            if finished > tail:
                return self.cycle
            if open_ and quiet >= watchdog:
                raise StuckError(
                    f"nothing moved for {quiet} cycles, at cycle {self.cycle}; " + "; ".join(open_)
                )

    def _sample(self, value: Value) -> Callable[[], int]:
        """What gives the settled value of a signal, or of an expression of signals."""
        engine = self._simulated.engine
        if isinstance(value, Signal):
            return partial(getattr, self._simulated.slot(value), "curr")
        return partial(engine.get_value, value)
