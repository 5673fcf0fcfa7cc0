"""The manifest: everything that a host needs to know about an accelerator, as frozen values.

The manifest lists registers, buffers, ports, program and counters. The compiler writes one `Manifest` beside
the Verilog; the runtime reads it and needs nothing else. Host and hardware share two binary formats.
`artifact.phase_table` defines the phase table, and this module defines the status block.

The status block (role `status`) has 16 words of 32 bits (`StatusBlock`), then one word for each counter. Each
node has two counters, busy and stalled cycles. Each FIFO has one counter, with the greatest level in the low
half and the last level in the high half. The block is filled up to whole beats.

To start a run, the host writes the arguments, then the start bit. `command` 0 runs the table, 1 is a soft
reset. `tiles` is the number of token tiles, ceil(tokens / tokens_per_tile). `timeout` is the number of cycles
without any progress after which a run ends with an error; 0 means `DEFAULT_TIMEOUT`. A run that ends with an
error resets the core by itself. A run that is reset, and a run whose memory does not answer, write no status
block.
"""

import dataclasses
import hashlib
import re
import typing
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES, MAX_ID_BITS
from streamgen.artifact.phase_table import PhaseTable
from streamgen.base.files import as_text, decode, parsed

MANIFEST_VERSION = 11
STATUS_MAGIC = 0x54534753  # "SGST"
STATUS_WORDS = 16
COMMAND_RUN, COMMAND_RESET = 0, 1
DEFAULT_TIMEOUT = 1 << 20
_PLAIN_FILE = re.compile(r"[\w.-]+")
_VERILOG_FILE = re.compile(r"\w[\w.-]*\.s?v", re.ASCII)
SCALARS = ("command", "tiles", "position", "timeout")


class RunError(IntEnum):
    """The end of a run, as the status block and the read-only error register say it."""

    NONE = 0
    TIMEOUT = 1  # no token and no beat moved for `timeout` cycles; detail: mask of the channels at work
    AXI = 2  # a memory response was not OKAY; detail: mask of the channels
    TABLE = 3  # the phase table has no magic word or an illegal directory or header
    HUNG = 4  # the memory did not drain, so the core could not be reset; detail: mask of the channels at work
    STOPPED = 5  # a reset was asked for in the run; in the register only, as no status block is written


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A register of s_axi_control at a byte offset: a 32-bit scalar or a 64-bit pointer."""

    name: str
    kind: Literal["scalar", "pointer"]
    offset: int

    @property
    def bytes(self) -> int:
        """Bytes in the register map, including the reserved word."""
        return 12 if self.kind == "pointer" else 8


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A region of one memory channel, passed as the pointer argument of the same name.

    role: use of the buffer. A buffer of role `state` keeps values from run to run; the host fills it with
    zeros before the first run. A buffer of role `spill` keeps values from phase to phase of a run; the host
    does not touch it. A buffer of role `resident` holds weights that the hardware reads after a reset only.
    bytes: largest size, a multiple of 64. itensor: order of the tokens in memory, as text,
    for one token tile. tile_loop: loop of the itensor that runs `tiles` times as often in a run of `tiles`
    tiles; None if the itensor does not depend on the number of tiles. shape: logical shape at the largest
    number of tokens; elements beyond it are zero padding. With a `tile_loop`, dimension 0 is the tokens.
    file: file beside the manifest with the packed contents.
    """

    name: str
    role: Literal["input", "output", "state", "spill", "weights", "resident", "table", "status"]
    channel: int
    bytes: int
    itensor: str | None = None
    tile_loop: int | None = None
    shape: tuple[int, ...] | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if self.bytes <= 0 or self.bytes % BEAT_BYTES:
            raise ValueError(
                f"buffer {self.name!r}: bytes must be a positive multiple of 64, not {self.bytes}"
            )
        if self.channel < 0:
            raise ValueError(f"buffer {self.name!r}: channel must be >= 0, not {self.channel}")


@dataclass(frozen=True, kw_only=True)
class MemoryPort:
    """An AXI4 master of the top: its pins are `<name>_awaddr` and so on."""

    name: str
    channel: int
    id_bits: int


@dataclass(frozen=True, kw_only=True)
class BoardFacts:
    """The board, as far as a host needs to know it. channels: number of memory channels. channel_bytes: bytes
    of a channel; channel i begins at byte i * channel_bytes."""

    name: str
    channels: int
    channel_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """Performance model of a memory channel: `beats` beats in `cycles` cycles, the first beat after `latency`
    cycles."""

    beats: int
    cycles: int
    latency: int


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One 32-bit word in the counter area of the status block. depth: depth of a FIFO; 0 for a node."""

    name: str
    kind: Literal["busy", "stalled", "level"]
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """An edge of the graph, and the instance in the top through which its tokens pass.

    instance: a FIFO with the pins i__valid, i__ready, i__payload, o__valid, o__ready and o__payload. sender:
    if the ends of the edge lie on different SLRs, the instance that has the pins of i.
    """

    name: str
    instance: str
    sender: str | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """The instance with the pins of i, and the instance with the pins of o."""
        return self.sender or self.instance, self.instance


@dataclass(frozen=True, kw_only=True)
class VariantFacts:
    """Another program of the same hardware, which leaves out some work. outputs: buffers that it writes."""

    name: str
    program: PhaseTable
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A file beside the manifest, and its SHA-256 in 64 hexadecimal digits."""

    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class StatusBlock:
    """The status block of one run, as read by the host.

    detail: see `RunError`. cycles: cycles from the start of the run to the writing of this block.
    descriptors: number of descriptors sent in this run. awaited: number of completions that the run still
    waited for. counters: one value for each counter of the manifest.
    """

    error: RunError
    detail: int
    design_hash: str
    cycles: int
    descriptors: int
    awaited: int
    counters: tuple[int, ...]

    @classmethod
    def unpack(cls, raw: bytes, counters: int) -> "StatusBlock":
        """Read a status block. Raises ValueError if `raw` is not a status block with that many counters."""
        words = [int(word) for word in np.frombuffer(raw, "<u4", len(raw) // 4)]
        if len(words) < STATUS_WORDS + counters:
            raise ValueError(f"status block of {len(raw)} bytes is too short for {counters} counters")
        if words[0] != STATUS_MAGIC:
            raise ValueError(f"status block starts with {words[0]:#010x}, not {STATUS_MAGIC:#010x}")
        if words[10] != counters:
            raise ValueError(f"status block has {words[10]} counters, not {counters}")
        return cls(
            error=RunError(words[1]),
            detail=words[2],
            design_hash=f"{words[4] | words[5] << 32:016x}",
            cycles=words[6] | words[7] << 32,
            descriptors=words[8],
            awaited=words[9],
            counters=tuple(words[STATUS_WORDS : STATUS_WORDS + counters]),
        )


def argument_map(pointers: tuple[str, ...]) -> tuple[Argument, ...]:
    """The registers from offset 0x10 on: the four scalars, then a pointer for each buffer."""
    result: list[Argument] = []
    offset = 0x10
    for name in (*SCALARS, *pointers):
        argument = Argument(
            name=name, kind="scalar" if len(result) < len(SCALARS) else "pointer", offset=offset
        )
        result.append(argument)
        offset += argument.bytes
    return tuple(result)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a host needs to run the design.

    board: board for which the design is built. top, verilog: name of the top module and of its file. sources:
    other Verilog files, in order, which the modules of users need. design_hash: 16 hexadecimal digits, also
    wired into the hardware and returned in every status block. buffers: the pointer arguments, in order.
    program: phase table of a run. streams: instance of each edge in the Verilog, in topological order.
    variants: programs that a run may use in place of `program`. whole: all tokens of a sequence must be in
    one run. files: digests of all files beside the manifest; they do not count in comparisons and in
    `identity`.

    Raises ValueError for values that no design has.
    """

    board: BoardFacts
    top: str
    verilog: str
    design_hash: str
    clock_mhz: float
    tokens_per_tile: int
    max_tokens: int
    ports: tuple[MemoryPort, ...]
    buffers: tuple[Buffer, ...]
    program: PhaseTable
    counters: tuple[Counter, ...]
    memory: MemoryTiming
    streams: tuple[StreamFacts, ...] = ()
    sources: tuple[str, ...] = ()
    variants: tuple[VariantFacts, ...] = ()
    whole: bool = False
    files: tuple[WrittenFile, ...] = dataclasses.field(default=(), compare=False)
    version: int = MANIFEST_VERSION

    def __post_init__(self) -> None:
        if self.version != MANIFEST_VERSION:
            raise ValueError(_other_version(self.version))
        if len(self.design_hash) != 16 or set(self.design_hash) - set("0123456789abcdef"):
            raise ValueError(f"design_hash must be 16 hexadecimal digits, not {self.design_hash!r}")
        _require_counts(self)
        _require_names(self)
        names = [buffer.name for buffer in self.buffers]
        if len(set(names) | set(SCALARS)) != len(names) + len(SCALARS):
            raise ValueError(f"buffer names must differ from one another and from {SCALARS}: {names}")
        for role in ("table", "status"):
            if (count := sum(buffer.role == role for buffer in self.buffers)) != 1:
                raise ValueError(f"a manifest needs exactly one buffer of role {role!r}, not {count}")
        channels = {port.channel for port in self.ports}
        for buffer in self.buffers:
            if buffer.channel not in channels:
                raise ValueError(f"buffer {buffer.name!r} is on channel {buffer.channel}, which has no port")

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The argument registers, in order of their offsets."""
        return argument_map(tuple(buffer.name for buffer in self.buffers))

    def variant(self, name: str | None) -> VariantFacts:
        """The program and the outputs of a variant. name: None for the run that leaves out nothing. Raises
        ValueError for an unknown name."""
        if name is None:
            outputs = tuple(buffer.name for buffer in self.buffers if buffer.role == "output")
            return VariantFacts(name="", program=self.program, outputs=outputs)
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = ", ".join(variant.name for variant in self.variants) or "none"
        raise ValueError(f"design {self.top!r} has no variant {name!r}; known are: {known}")

    @property
    def verilog_files(self) -> tuple[str, ...]:
        """All Verilog files, in the order in which tools must read them."""
        return (self.verilog, *self.sources)

    def digest_of(self, name: str) -> str:
        """The digest of a file beside the manifest. Raises ValueError if the manifest does not list the
        file."""
        for file in self.files:
            if file.name == name:
                return file.digest
        raise ValueError(f"the manifest of {self.top!r} has no digest of {name!r}; write the folder again")

    @property
    def error_offset(self) -> int:
        """Byte offset of the read-only register {detail (24 bits), RunError (8 bits)} of the last run."""
        last = self.arguments[-1]
        return last.offset + last.bytes

    @property
    def status_bytes(self) -> int:
        """Bytes of the status block that the hardware writes."""
        return -(-(STATUS_WORDS + len(self.counters)) // 16) * BEAT_BYTES

    def identity(self) -> str:
        """A digest of 16 hexadecimal digits over all fields except `design_hash` and `files`. The compiler
        makes `design_hash` from it."""
        text = dataclasses.replace(self, design_hash="0" * 16, files=()).to_json()
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The manifest as JSON; `from_json` reads it. Equal manifests give equal texts."""
        return as_text(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Read the text of `to_json`. Raises ValueError with the name of the first field that is missing,
        unknown or of the wrong type."""
        value = parsed(text)
        if isinstance(value, dict) and value.get("version") != MANIFEST_VERSION:
            raise ValueError(_other_version(value.get("version")))
        return typing.cast(Manifest, decode(cls, value, "manifest"))


def _require_names(manifest: Manifest) -> None:
    """Raise ValueError unless all file names are plain and all names are Verilog identifiers."""
    files = [*manifest.verilog_files, *(b.file for b in manifest.buffers if b.file is not None)]
    for name in files:
        if not _PLAIN_FILE.fullmatch(name) or name in (".", ".."):
            raise ValueError(
                f"{name!r} is not the name of a file beside the manifest; letters, digits, _, - and . are "
                "allowed"
            )
    for name in manifest.verilog_files:
        if not _VERILOG_FILE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a Verilog file; it must end in .v or .sv")
    names = [*(port.name for port in manifest.ports), *(buffer.name for buffer in manifest.buffers)]
    for name in (manifest.top, *names, *(side for stream in manifest.streams for side in stream.sides)):
        if not (name.isidentifier() and name.isascii()):
            raise ValueError(f"{name!r} is not a name; letters, digits and _ are allowed")


def _require_counts(manifest: Manifest) -> None:
    """Raise ValueError with the name of the field for a number that no design has."""
    board, memory = manifest.board, manifest.memory
    least = {
        "tokens_per_tile": (manifest.tokens_per_tile, 1),
        "max_tokens": (manifest.max_tokens, 1),
        "board.channels": (board.channels, 1),
        "board.channel_bytes": (board.channel_bytes, BEAT_BYTES),
        "memory.beats": (memory.beats, 1),
        "memory.cycles": (memory.cycles, 1),
        "memory.latency": (memory.latency, 0),
        **{f"ports[{i}].channel": (port.channel, 0) for i, port in enumerate(manifest.ports)},
        **{f"counters[{i}].depth": (counter.depth, 0) for i, counter in enumerate(manifest.counters)},
    }
    for name, (value, smallest) in least.items():
        if not smallest <= value < 1 << 48:
            raise ValueError(f"{name} must be at least {smallest} and below 2^48, not {value}")
    for i, port in enumerate(manifest.ports):
        if not 0 <= port.id_bits <= MAX_ID_BITS:
            raise ValueError(f"ports[{i}].id_bits must be 0 to {MAX_ID_BITS}, not {port.id_bits}")
    if not 0 < manifest.clock_mhz < 1e6:
        raise ValueError(f"clock_mhz must be above 0 and below a million, not {manifest.clock_mhz}")


def _other_version(version: Any) -> str:
    return (
        f"the manifest has version {version}, not {MANIFEST_VERSION}; another release of streamgen wrote it. "
        "Compile again"
    )
