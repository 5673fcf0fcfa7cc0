"""The common part of kernels that pass tokens on unchanged: forks, routes, selects, segments, row parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth import Cat, Module, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Resources
from streamgen.gateware.stream import CountdownParams, add_skid, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.numbers import formats


def passed(bounds: Bounds, name: str, token_bits: int, max_tokens: int, rows: int = 1) -> ITensor:
    """The stream of an execution; ValueError, which names the kernel ("a route"), if it does not fit. rows: a
    row has at most max_tokens tokens."""
    itensor: ITensor = bounds["itensor"]
    if itensor.token_bits != token_bits:
        raise ValueError(
            f"tokens of the {name.removeprefix('a ')} have {token_bits} bits, "
            f"those of {itensor} {itensor.token_bits}"
        )
    if itensor.token_count > max_tokens * rows:
        raise ValueError(f"{name} of at most {max_tokens} tokens cannot run {itensor.token_count}: {itensor}")
    return itensor


@dataclass(frozen=True, kw_only=True)
class SteeredParams:
    """Params of a kernel with `ways` ports, of which each execution uses one.

    max_rows: the most rows of an execution; with several, max_tokens are those of a row. width: elements of a
    row in a token, a power of two; with several, a descriptor gives the length of a row, and its last token
    may have padding. Bounds: {"itensor": ITensor, "way": int}, the stream that passes and the number of its
    port; "rows" (1); and with a width the "length" of a row.
    """

    token_bits: int
    ways: int
    max_tokens: int
    max_rows: int = 1
    width: int = 1
    moves: ClassVar[bool] = True
    ports: ClassVar[str]
    """What there are several of, "inputs" or "outputs"."""

    def __post_init__(self) -> None:
        for name, least in (("token_bits", 1), ("ways", 2), ("max_tokens", 1), ("max_rows", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name} of {self._name} must be at least {least}, not {getattr(self, name)}"
                )
        if self.width < 1 or self.width & (self.width - 1) or (self.width > 1 and self.max_rows == 1):
            raise ValueError(
                f"width of {self._name} is {self.width}; 1 is needed or, with several rows, a power of two"
            )

    def descriptor_fields(self) -> tuple[Field, ...]:
        longest = self.max_tokens * self.width
        fields = Field("port", bits_for(self.ways - 1)), Field("tokens", longest.bit_length())
        return fields if self.max_rows == 1 else (*fields, Field("rows", self.max_rows.bit_length()))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        count, rows = self._itensor(bounds).token_count, bounds.get("rows", 1)
        if not 1 <= rows <= self.max_rows or count % rows:
            raise ValueError(f"rows is {rows}; 1 to {self.max_rows} are allowed, which divide {count} tokens")
        tokens = count // rows
        if self.width > 1 and -(-(length := bounds["length"]) // self.width) != tokens:
            raise ValueError(f"length is {length}; {tokens} tokens of {self.width} are no row of it")
        described = {"port": self._way(bounds), "tokens": tokens if self.width == 1 else length}
        return described if self.max_rows == 1 else {**described, "rows": rows}

    @property
    def begin(self) -> int:
        """The cycle of the first token: a descriptor takes one cycle, and one more to count rows."""
        return 1 if self.max_rows == 1 else 2

    @property
    def counters(self) -> Resources:
        """Resources of the counters of tokens and rows."""
        tokens = CountdownParams(bits=self.max_tokens.bit_length()).resources
        if self.max_rows == 1:
            return tokens
        fields = sum(field.bits for field in self.descriptor_fields())
        rounding = self.max_tokens.bit_length() if self.width > 1 else 0
        rows = CountdownParams(bits=self.max_rows.bit_length()).resources
        return tokens + rows + Resources(lut=rounding, ff=fields)

    @property
    def _name(self) -> str:
        return f"a {type(self).__name__.removesuffix('Params').lower()}"

    def _way(self, bounds: Bounds) -> int:
        way = bounds["way"]
        if not 0 <= way < self.ways:
            raise ValueError(
                f"way is {way}; {self._name} of {self.ways} {self.ports} takes 0 to {self.ways - 1}"
            )
        return int(way)

    def _itensor(self, bounds: Bounds) -> ITensor:
        return passed(bounds, self._name, self.token_bits, self.max_tokens, bounds.get("rows", 1))


class RowsParams:
    """The common part of the params of kernels for rows in tokens (1, lanes) of `dtype`.

    max_tokens: the most tokens of one descriptor.
    """

    dtype: str
    lanes: int
    max_tokens: int

    def __post_init__(self) -> None:
        name = type(self).__name__.removesuffix("Params")
        if self.lanes < 1:
            raise ValueError(f"{name}.lanes is {self.lanes}; at least 1 is needed")
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"{name}.max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")
        formats.token_bits(self.dtype, (1, self.lanes))  # raises for a dtype without such a token

    @property
    def token_bits(self) -> int:
        return formats.token_bits(self.dtype, (1, self.lanes))

    @property
    def counter(self) -> CountdownParams:
        """Counts the tokens of a descriptor."""
        return CountdownParams(bits=self.max_tokens.bit_length())

    def _rows(self, rows: int, features: int) -> ITensor:
        trips = (rows, features // self.lanes)
        return ITensor((1, self.lanes), self.dtype, trips, (1, self.lanes), ((0,), (1,)))


class Splitter(wiring.Component):
    """`i` to `o_0` … `o_{ways-1}`."""

    def __init__(self, params: Any) -> None:
        self._params = params
        token = stream.Signature(params.token_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                **{f"o_{way}": Out(token) for way in range(params.ways)},
            }
        )


def add_steering(
    m: Module, params: CountdownParams, descriptor: Any, i: Any, chosen: Value, outputs: Sequence[Any]
) -> Any:
    """Pass the `tokens` of each descriptor from `i` to the outputs, through a register stage.

    chosen: one-hot, the output of the token that `i` offers. Returns the countdown, whose `taken` is high
    when a descriptor is taken and whose `step` when a token is.
    """
    m.submodules.count = count = params.build()
    bits, ways = len(i.payload), len(outputs)
    addressed, sent = (stream.Signature(bits + ways).create(path=(name,)) for name in ("addressed", "sent"))
    m.d.comb += [
        *count.takes(descriptor, descriptor.payload.tokens),
        count.step.eq(i.valid & i.ready),
        addressed.valid.eq(i.valid & count.active),
        addressed.payload.eq(Cat(chosen, i.payload)),
        i.ready.eq(addressed.ready & count.active),
    ]
    add_skid(m, addressed, [sent])
    m.d.comb += sent.ready.eq((Cat(o.ready for o in outputs) & sent.payload[:ways]).any())
    for way, o in enumerate(outputs):
        m.d.comb += [o.valid.eq(sent.valid & sent.payload[way]), o.payload.eq(sent.payload[ways:])]
    return count
