"""Holds: values that wait between phases, or from walk to walk."""

from dataclasses import dataclass, field
from itertools import count

from streamgen.itensor import ITensor
from streamgen.model.graph import Port


@dataclass(eq=False)
class Hold:
    """A value between phases. writes, reads: order of its tiles in each phase that writes or reads it. A
    writer has a link to the port `i`, a reader has a link from the port `o`. carried: whether the value
    passes from walk to walk."""

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
    """The holds of a run, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Hold] = {}

    def new(self, wanted: str) -> Hold:
        """A new hold. If another hold has the wanted name, a number is appended."""
        names = (wanted if not n else f"{wanted}_{n}" for n in count())
        hold = Hold(next(name for name in names if name not in self.by_name))
        self.by_name[hold.name] = hold
        return hold

    def carrier(self, name: str) -> Hold:
        """The hold that carries a value from walk to walk."""
        return self.by_name.setdefault(name, Hold(name, carried=True))
