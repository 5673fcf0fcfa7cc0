"""Holds: values that wait between phases, or from walk to walk."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from streamgen.itensor import ITensor
from streamgen.model.graph import Port


@dataclass(eq=False)
class Hold:
    """A value between phases. writes, reads: in which order, by phase. Who writes it has links to the port
    `i`, who reads it from the port `o`. carried: from walk to walk."""

    name: str
    writes: dict[int, ITensor] = field(default_factory=dict)
    reads: dict[int, ITensor] = field(default_factory=dict)
    carried: bool = False

    @property
    def source(self) -> Port:
        return Port(self.name, "o")

    @property
    def sink(self) -> Port:
        return Port(self.name, "i")


class Holds:
    """Those of a run, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Hold] = {}

    def __iter__(self) -> Iterator[Hold]:
        return iter(self.by_name.values())

    def new(self, wanted: str) -> Hold:
        """One more, with a number behind its name where another one has it."""
        names = (wanted if not n else f"{wanted}_{n}" for n in count())
        hold = Hold(next(name for name in names if name not in self.by_name))
        self.by_name[hold.name] = hold
        return hold

    def carrier(self, name: str) -> Hold:
        """The one that carries a value from walk to walk."""
        return self.by_name.setdefault(name, Hold(name, carried=True))
