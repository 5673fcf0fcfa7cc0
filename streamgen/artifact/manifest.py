"""What an accelerator tells its host: registers, buffers, ports, program, counters, as frozen values.

The compiler writes one `Manifest` beside the Verilog; the runtime reads it and needs nothing else. Of the
two binary formats that host and hardware share, the phase table is fixed by `artifact.phase_table`, the
status block here.

Status block (role `status`): 16 words of 32 bits (`StatusBlock`), then one word for each counter: of
each node busy and stalled cycles, then of each FIFO greatest level (low half) and last level (high
half); filled up to whole beats.

Run: write the arguments, write start. `command` 0 runs the table, 1 is a soft reset. `tiles` is the
number of token tiles, ceil(tokens / tokens_per_tile); `timeout` is the number of cycles without any
progress that ends a run, 0 means `DEFAULT_TIMEOUT`. An errored run resets the core by itself. A reset
run, and a run whose memory is dead, writes no status block.
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

MANIFEST_VERSION = 9
STATUS_MAGIC = 0x54534753  # "SGST"
STATUS_WORDS = 16
COMMAND_RUN, COMMAND_RESET = 0, 1
DEFAULT_TIMEOUT = 1 << 20
_PLAIN_FILE = re.compile(r"[\w.-]+")
_VERILOG_FILE = re.compile(r"\w[\w.-]*\.s?v", re.ASCII)
SCALARS = ("command", "tiles", "position", "timeout")


class RunError(IntEnum):
    """How a run ended; in the status block and in the read-only error register."""

    NONE = 0
    TIMEOUT = 1  # no token and no beat moved for `timeout` cycles; detail: mask of the channels at work
    AXI = 2  # a memory response was not OKAY; detail: mask of the channels
    TABLE = 3  # the phase table has no magic word or an illegal directory or header
    HUNG = 4  # the memory did not drain, so the core could not be reset; detail: mask of the channels at work
    STOPPED = 5  # a reset was asked for in the run; in the register only, as no status block is written


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A register of s_axi_control: a 32-bit scalar or a 64-bit pointer at a byte offset."""

    name: str
    kind: Literal["scalar", "pointer"]
    offset: int

    @property
    def bytes(self) -> int:
        """Bytes it takes in the register map, the reserved word included."""
        return 12 if self.kind == "pointer" else 8


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A region of one memory channel, passed as the pointer argument of the same name.

    bytes: greatest size, a multiple of 64. itensor: text of the token stream that lies in memory, for
    one token tile; the loop `tile_loop` then runs `tiles` times as often (None: no dependence). shape:
    logical extents at the greatest number of tokens; the rest of the ITensor's shape is zero padding,
    and dimension 0 is tokens when `tile_loop` is given. file: packed contents beside the manifest. The role
    `state` is what a run leaves for the next one; the host fills it with zeros before the first. `spill` is
    what a phase leaves for a later one of the same run; the host leaves it alone.
    """

    name: str
    role: Literal["input", "output", "state", "spill", "weights", "table", "status"]
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
    """What a host needs to know of the board: its name, and how many memory channels of how many bytes it
    has; channel i begins at i * channel_bytes."""

    name: str
    channels: int
    channel_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryTiming:
    """Performance model of one channel: `beats` beats in `cycles` cycles, first one after `latency`."""

    beats: int
    cycles: int
    latency: int


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One 32-bit word of the status block's counter area; depth is that of a FIFO, else 0."""

    name: str
    kind: Literal["busy", "stalled", "level"]
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """An edge of the graph and the instance in the top through which its tokens pass: a FIFO with the pins
    i__valid, i__ready, i__payload and o__valid, o__ready, o__payload. sender: the instance with those of i,
    where the ends lie on different SLRs."""

    name: str
    instance: str
    sender: str | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """The instances with the pins of i and of o."""
        return self.sender or self.instance, self.instance


@dataclass(frozen=True, kw_only=True)
class VariantFacts:
    """Another program of the same hardware, which leaves something out. outputs: the buffers it writes."""

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
    """The status block of one run, read back.

    detail: see `RunError`; cycles: from start to the writing of this block; descriptors: sent in this
    run; awaited: completions still awaited; counters: one value a counter of the manifest.
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
        """ValueError when `raw` is no status block with that many counters."""
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
    """The registers from 0x10 on: the four scalars, then a pointer for each buffer."""
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
    """Everything the host needs to run the design.

    board: what it is built for. top, verilog: module and file name. sources: files of Verilog that the
    modules of users need beside it, in order. design_hash: 16 hex digits, also wired into the hardware and
    returned in every status block. The pointer arguments are the buffers, in order. streams: where in the
    Verilog each edge is, in topological order. variants: what a run may do in the place of `program`. whole:
    all tokens of a sequence belong to one run. files: all that is written beside it; no part of what it is.
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
        """The program and the outputs of a variant; None: of a run that leaves out nothing."""
        if name is None:
            outputs = tuple(buffer.name for buffer in self.buffers if buffer.role == "output")
            return VariantFacts(name="", program=self.program, outputs=outputs)
        for one in self.variants:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.variants) or "none"
        raise ValueError(f"design {self.top!r} has no variant {name!r}; known are: {known}")

    @property
    def verilog_files(self) -> tuple[str, ...]:
        """All files of Verilog, in the order in which tools read them."""
        return (self.verilog, *self.sources)

    def digest_of(self, name: str) -> str:
        """Of a file that is written beside it. ValueError when it names none."""
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
        """16 hex digits over what it is, but for `design_hash`: a digest for a compiler to start from."""
        text = dataclasses.replace(self, design_hash="0" * 16, files=()).to_json()
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Text that `from_json` turns back into an equal manifest; the same manifest, the same bytes."""
        return as_text(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """ValueError names the first field that is missing, unknown or of the wrong type."""
        value = parsed(text)
        if isinstance(value, dict) and value.get("version") != MANIFEST_VERSION:
            raise ValueError(_other_version(value.get("version")))
        return typing.cast(Manifest, decode(cls, value, "manifest"))


def _require_names(manifest: Manifest) -> None:
    """ValueError unless files lie beside the manifest and names are those of Verilog."""
    files = [*manifest.verilog_files, *(b.file for b in manifest.buffers if b.file is not None)]
    for name in files:
        if not _PLAIN_FILE.fullmatch(name) or name in (".", ".."):
            raise ValueError(
                f"{name!r} is no file beside the manifest: letters, digits, _, - and . make a name"
            )
    for name in manifest.verilog_files:
        if not _VERILOG_FILE.fullmatch(name):
            raise ValueError(f"{name!r} is not called like a file of Verilog, which ends in .v or .sv")
    names = [*(port.name for port in manifest.ports), *(buffer.name for buffer in manifest.buffers)]
    for name in (manifest.top, *names, *(side for stream in manifest.streams for side in stream.sides)):
        if not (name.isidentifier() and name.isascii()):
            raise ValueError(f"{name!r} is not a name: letters, digits and _ make one")


def _require_counts(manifest: Manifest) -> None:
    """ValueError, with the field, for a number where no design has it."""
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
    return f"manifest version {version} is not {MANIFEST_VERSION}: of another streamgen; compile again"
