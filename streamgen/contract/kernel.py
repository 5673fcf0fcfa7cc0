"""What graphs, passes and the emitter ask of a kernel, a converter or a DMA, ours or a user's.

A kernel is a frozen, keyword-only Params dataclass. It is what is built (lanes, formats, maxima), it
is hashable, and everything known about the hardware hangs on it. Bounds (loop counts, lengths) are
not part of it: they arrive at run time as a descriptor, and every method below takes them.

Laws:
1. Port names are the attribute names of the component's streams: `i`, `o`, or `i_x`, `o_y`.
   Every component also has `i_descriptor`, a stream whose payload is the fields of
   `descriptor_fields`, the first field in the lowest bits.
2. `inputs` and `outputs` give, for given bounds, the ITensor of each port, always with the same
   loops, steps and map: only trip counts may change with the bounds (trip 1 is written out).
3. One descriptor starts one execution; descriptors queue; the next is taken at most 4 cycles after the
   last token of the one before has been *taken in*, so executions overlap. No state survives a
   descriptor except what a descriptor names.
4. `golden` takes and returns whole tensors (numpy, the shapes of the ITensors), bit-exact.
5. `cost` and `curves` hold exactly in simulation with every port ready.

Params may have a mapping `memory_ports` from the names of memory ports to "read" or "write". The component
then has such a port of a channel master (`memory`, or `memory_x`), with an input `base`, or `base_x`, the
byte address of the buffer behind it; and, if it writes, `done`, high for a cycle when what a descriptor asked
for is in memory. `golden` takes the arrays behind the ports by their names, and returns those it changes.
`traffic(bounds)` of such Params gives the beats that an execution moves through each memory port.

What else Params may have, and what holds where they have it not; functions below of these names read it:

    multipliers         8-bit multipliers that are built; 0
    products(bounds)    what they multiply in an execution; 0
    work(bounds)        cycles that multipliers for other operands (of attention) need at least; 0
    moves               whether what comes out is what went in, somewhere else or in another order; False
    copies              whether all outputs, `ways` of them, carry what comes in (a fork); False
    drops               whether all that comes in may end there: a run waits for its `done` then, high for a
                        cycle when an execution has taken all, as for that of what writes memory; False
    held_bits           bits of the tensors that it moves and holds meanwhile; 0
    link_depth          places that FIFOs at its ports need at least, where no schedule asks for more; 2
    patient             whether what it sends can as well wait in a memory of its own: no schedule asks for
                        room behind it, where tokens are so wide that it would cost a second memory; False
    is_of_column        whether it gives a matmul column its weights, which stay on the channel that was
                        chosen for the column; False
    keeps_weights       whether it reads memory after a reset only, and keeps what it has read; False
    row_units           equal pieces of each row behind its memory port that may lie on different channels;
                        if there are several, `parts(row_units)` are loads of parts of rows, `joined(parts)`
                        joins what they send, `joined_bounds(parts, bounds)` are its bounds; 1
    least_prefetch()    the Params of the same hardware that reads ahead no further than it must; itself
    clocks(bounds)      its sides (`streamgen.fifo.clocks`), for predictions; what follows from the curves
    apart               whether FIFO sizing, too, takes its sides one by one; False: as one, by the curves
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from numpy import floating, integer, ndarray

from streamgen.contract.cost import Cost, Curve
from streamgen.itensor import ITensor

Bounds = Mapping[str, Any]
_KEPT = 1 << 13  # executions of which streams and descriptors are kept: passes ask for the same ones again


@dataclass(frozen=True)
class Field:
    """One field of a descriptor: an unsigned number of at most 32 bits."""

    name: str
    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise ValueError(f"descriptor field {self.name!r} has {self.bits} bits; 1 to 32 are allowed")


@runtime_checkable
class KernelParams(Protocol):
    """The Params of a kernel; `__hash__` and `==` decide which hardware is built once and re-used."""

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]: ...

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]: ...

    def descriptor_fields(self) -> tuple[Field, ...]: ...

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of each descriptor field; ValueError when the hardware cannot run these bounds."""

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]: ...

    def cost(self, bounds: Bounds) -> Cost: ...

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]: ...

    def build(self) -> Any:
        """A new amaranth Component of this hardware."""


def missing_methods(params: object) -> list[str]:
    """The methods of KernelParams that an object lacks, and `traffic` where it has memory ports."""
    methods = [name for name in vars(KernelParams) if not name.startswith("_")]
    if getattr(params, "memory_ports", {}):
        methods.append("traffic")
    return [name for name in methods if not callable(getattr(params, name, None))]


def memory_ports(params: KernelParams) -> Mapping[str, Literal["read", "write"]]:
    """Names of the memory ports and what they do; most kernels have none."""
    return getattr(params, "memory_ports", {})


def traffic(params: KernelParams, bounds: Bounds) -> Mapping[str, int]:
    """Beats that an execution moves through each memory port. ValueError unless all ports are named."""
    ports = memory_ports(params)
    beats: Mapping[str, int] = getattr(params, "traffic")(bounds) if ports else {}  # noqa: B009
    if set(beats) != set(ports):
        raise ValueError(
            f"traffic of {type(params).__name__} names {sorted(beats)}, the memory ports are {sorted(ports)}"
        )
    return beats


def multipliers(params: KernelParams) -> int:
    """8-bit multipliers that are built."""
    return getattr(params, "multipliers", 0)


def products(params: KernelParams, bounds: Bounds) -> int:
    """Products that the multipliers compute in an execution."""
    return params.products(bounds) if hasattr(params, "products") else 0


def work(params: KernelParams, bounds: Bounds) -> int:
    """Cycles that multipliers which take no weights need at least in an execution."""
    return params.work(bounds) if hasattr(params, "work") else 0


def moves(params: KernelParams) -> bool:
    """Whether tensors only pass: forks, switches, concatenations, converters, loads, stores."""
    return getattr(params, "moves", False)


def only_loads(params: KernelParams) -> bool:
    """Whether it sends what memory holds."""
    return moves(params) and "read" in memory_ports(params).values()


def only_stores(params: KernelParams) -> bool:
    """Whether memory gets what comes in."""
    return moves(params) and "write" in memory_ports(params).values()


def is_of_column(params: KernelParams) -> bool:
    """Whether it gives a matmul column its weights, which lie on the channel that was chosen for the
    column."""
    return getattr(params, "is_of_column", False)


def keeps_weights(params: KernelParams) -> bool:
    """Whether it reads memory after a reset only, and keeps what it has read."""
    return getattr(params, "keeps_weights", False)


def row_units(params: KernelParams) -> int:
    """The equal pieces of each row behind its memory port that may lie on different channels. If there are
    several, `parts`, `joined` and `joined_bounds` give the kernels that read them (`RowsLoadParams`)."""
    return getattr(params, "row_units", 1)


def completes(params: KernelParams) -> bool:
    """Whether a run waits for the end of its executions, since others may get nothing of them: it writes
    memory or drops tokens. Its component has `done`, high for a cycle when an execution is over."""
    return "write" in memory_ports(params).values() or getattr(params, "drops", False)


def held_bits(params: KernelParams) -> int:
    """Bits of tensors that it holds while it moves them."""
    return getattr(params, "held_bits", 0)


def copies(params: KernelParams) -> bool:
    """Whether it is a fork: dataclass Params, of which `ways` says how many outputs carry what comes in."""
    return getattr(params, "copies", False)


def link_depth(params: KernelParams) -> int:
    """Places that FIFOs at its ports need at least: 1 where its ports are near registers, so that a FIFO
    whose `ready` is no register makes no long path."""
    return getattr(params, "link_depth", 2)


def patient(params: KernelParams) -> bool:
    """Whether what it sends can as well wait in a memory of its own."""
    return getattr(params, "patient", False)


def least_prefetch(params: KernelParams) -> KernelParams:
    """The same hardware, reading ahead no further than it must."""
    least: KernelParams = params.least_prefetch() if hasattr(params, "least_prefetch") else params
    return least


def descriptor_values(params: KernelParams, bounds: Bounds) -> Mapping[str, int]:
    """What `describe` gives, in the order of the fields; the same mapping for the same bounds.

    ValueError when it gives other fields than there are, or a value that its field cannot hold; and what
    `describe` itself raises.
    """
    return _kept(_described, params, bounds)


def streams(params: KernelParams, bounds: Bounds) -> tuple[Mapping[str, ITensor], Mapping[str, ITensor]]:
    """`inputs` and `outputs`; the same mappings for the same bounds."""
    return _kept(_streams, params, bounds)


def _kept(compute: Any, params: KernelParams, bounds: Bounds) -> Any:
    """What is computed of Params and bounds, once for equal ones where they can be hashed.

    Numbers that are equal may differ in what is made of them, as 0.0 and -0.0 do: they are not taken for one
    another.
    """
    items = tuple(
        (name, _Exactly(value, repr(value) if isinstance(value, float | floating) else type(value)))
        for name, value in bounds.items()
    )
    try:
        hash(items)
    except TypeError:
        return compute.__wrapped__(params, items)
    return compute(params, items)


class _Exactly(NamedTuple):
    """A value, and what else tells it from others."""

    value: Any
    mark: Any


@lru_cache(maxsize=_KEPT)
def _streams(
    params: KernelParams, items: tuple[tuple[str, _Exactly], ...]
) -> tuple[Mapping[str, ITensor], Mapping[str, ITensor]]:
    bounds = {name: value for name, (value, _) in items}
    return params.inputs(bounds), params.outputs(bounds)


@lru_cache(maxsize=_KEPT)
def _described(params: KernelParams, items: tuple[tuple[str, _Exactly], ...]) -> Mapping[str, int]:
    values = params.describe({name: value for name, (value, _) in items})
    fields = params.descriptor_fields()
    if set(values) != {field.name for field in fields}:
        raise ValueError(
            f"describe gives {sorted(values)}, the fields are {[field.name for field in fields]}"
        )
    for field in fields:
        value = values[field.name]
        if not isinstance(value, int | integer) or not 0 <= value < 1 << field.bits:
            raise ValueError(f"descriptor field {field.name!r} has {field.bits} bits, its value is {value!r}")
    return {field.name: int(values[field.name]) for field in fields}
