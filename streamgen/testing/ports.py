"""The ports of a bench: sources that feed inputs, sinks that drain outputs, and spies on streams inside.

A port reads and writes slots of amaranth's simulation engine. In each cycle the bench calls `observe` after
all logic has settled, and then `drive`, which sets the signals of the port for the next cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from random import Random
from typing import Any

from amaranth.hdl import Value

from streamgen.testing.monitor import StreamMonitor


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Random pauses. The same seed gives the same pauses.

    sources, sinks: the probability that an input or an output pauses after a token. Most pauses last 1-4
    cycles; one in 16 lasts up to 40, so that queues run both empty and full. After one pause in four a sink
    keeps `ready` low until it sees `valid`, which stops a component whose valid waits for ready.

    Raises ValueError for a probability below 0 or above 1.
    """

    seed: int
    sources: float = 0.0
    sinks: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sources", "sinks"):
            chance = getattr(self, name)
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"{name} is {chance!r}; a probability from 0 to 1 is needed")


class BenchPort:
    """A stream of a bench: its slots in the engine, its monitor, the tokens to move, and the cycles in which
    they moved."""

    def __init__(
        self, name: str, interface: Any, engine: Any, *, random: Random, chance: float, hold: int, remark: str
    ) -> None:
        state = engine.state
        payload = Value.cast(interface.payload)
        self.name = name
        self.valid, self.ready, self.payload = (
            state.slots[state.get_signal(Value.cast(signal))]
            for signal in (interface.valid, interface.ready, payload)
        )
        self.width = len(payload)
        self.mask = (1 << self.width) - 1
        self.monitor = StreamMonitor(name, remark)
        self.count = 0
        self.tokens: list[int] = []
        self.cycles: list[int] = []
        self._random = random
        self._chance = chance
        self._hold = hold
        self.begin()

    def begin(self) -> None:
        """Prepare for the first cycle, also after a reset: no token has moved."""
        self.monitor.reset()
        self.pause = 0
        self.waits = False
        if self._chance:
            self._draw_pause()
        self.pause += self._hold
        self.cycles.clear()

    def _draw_pause(self) -> None:
        random = self._random
        if random.random() < self._chance:
            self.pause = random.randrange(5, 41) if random.random() < 1 / 16 else random.randrange(1, 5)
            self.waits = random.random() < 0.25

    @property
    def left(self) -> int:
        """Number of tokens that have not moved yet."""
        return self.count - len(self.cycles)

    def observe(self, cycle: int) -> bool:
        """Observe a settled cycle, and return whether a token moves."""
        raise NotImplementedError

    def drive(self) -> None:
        """Set the signals of the port for the next cycle."""

    def status(self) -> str:
        """Text: whether the component or the bench waits."""
        raise NotImplementedError

    def progress(self) -> str:
        """Text: how many tokens are left."""
        return f"{self.left} of {self.count}"


class PortSource(BenchPort):
    """Feeds an input; a token stays until it is taken."""

    def load(self, tokens: Sequence[int]) -> None:
        self.tokens = [index(token) for token in tokens]
        self.count = len(self.tokens)
        for k, token in enumerate(self.tokens):
            if not 0 <= token <= self.mask:
                raise ValueError(
                    f"token {k} of {self.name!r} is {token:#x}; the stream has {self.width} bits"
                )

    def begin(self) -> None:
        super().begin()
        self.valid.update(0)

    def observe(self, cycle: int) -> bool:
        if self.valid.curr and self.ready.curr:
            self.cycles.append(cycle)
            if self._chance:
                self._draw_pause()
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

    def status(self) -> str:
        if self.valid.curr:
            return "the component does not take the token"
        return "the component waits, and no token is left" if self.ready.curr else ""


class Sink(BenchPort):
    """Drains an output. `offered` holds the cycle in which each token was first valid."""

    def begin(self) -> None:
        super().begin()
        self.tokens.clear()
        self.offered: list[int] = []
        self.ready.update(0)

    def observe(self, cycle: int) -> bool:
        valid = self.valid.curr
        payload = self.payload.curr & self.mask
        if valid and len(self.offered) == len(self.tokens):
            self.offered.append(cycle)
        if self.monitor.observe(cycle, valid, self.ready.curr, payload):
            self.cycles.append(cycle)
            self.tokens.append(payload)
            if self._chance:
                self._draw_pause()
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

    def status(self) -> str:
        if self.left <= 0:
            return ""
        if self.waits:
            return "the sink waits for valid before it raises ready: valid must not wait for ready"
        return "the bench waits for the component"


class Spy(BenchPort):
    """Monitors a stream inside the component."""

    def observe(self, cycle: int) -> bool:
        return self.monitor.observe(cycle, self.valid.curr, self.ready.curr, self.payload.curr & self.mask)

    def status(self) -> str:
        if self.valid.curr:
            return "the producer waits for the consumer"
        return "the consumer waits for the producer" if self.ready.curr else "both wait"

    def progress(self) -> str:
        return f"{self.monitor.tokens} moved"
