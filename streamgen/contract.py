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
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from numpy import integer, ndarray

from streamgen.cost import Cost, Curve
from streamgen.itensor import ITensor

__all__ = ["Bounds", "Field", "KernelParams", "descriptor_values", "memory_ports", "missing_methods"]

Bounds = Mapping[str, Any]


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
    """The methods of KernelParams that an object lacks."""
    methods = (name for name in vars(KernelParams) if not name.startswith("_"))
    return [name for name in methods if not callable(getattr(params, name, None))]


def memory_ports(params: KernelParams) -> Mapping[str, Literal["read", "write"]]:
    """Names of the memory ports and what they do; most kernels have none."""
    return getattr(params, "memory_ports", {})


def descriptor_values(params: KernelParams, bounds: Bounds) -> dict[str, int]:
    """What `describe` gives, in the order of the fields.

    ValueError when it gives other fields than there are, or a value that its field cannot hold; and what
    `describe` itself raises.
    """
    values = params.describe(bounds)
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
