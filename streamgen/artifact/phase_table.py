"""The program of an accelerator: which descriptors go to which node, in order, and its bytes in memory.

Phase table (role `table`), little-endian 128-bit slots, four to a beat of 64 bytes:

* beat 0, the directory: word 0 = `TABLE_MAGIC`, word 1 = number of sections n <= 7; words 2 + 2s and
  3 + 2s = beats and repeats of section s, unused ones 0.
* then the sections one after the other, each filled up with zero slots to a whole beat. The sequencer
  walks section s `repeats` times; `layer` counts those walks from 0.
* a section is a list of descriptors. A descriptor is a header slot (bits 0-15 target, 16-23 number of
  words, 24 awaited: the run waits for its completion, 25 barrier: hold until all awaited so far are
  complete, 31 always 1) and then one slot for each word: four signed 32-bit numbers base, layer,
  position, tiles. The word sent is base + layer*l + position*p + tiles*t modulo 2^32, where l is the
  walk and p, t are the arguments of those names. A zero slot ends a section's beat.
* the whole is filled up with zeros to a multiple of `TABLE_CHUNK` bytes: the hardware reads a chunk
  before it knows the length.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES

TABLE_MAGIC = 0x54504753  # "SGPT"
TABLE_CHUNK = 1024
MAX_SECTIONS = 7
MAX_SLOTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Word:
    """A descriptor word: base + layer*l + position*p + tiles*t."""

    base: int = 0
    layer: int = 0
    position: int = 0
    tiles: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not -(2**31) <= value < 2**31:
                raise ValueError(f"descriptor word: {field.name} must fit 32 bits signed, not {value}")

    def value(self, *, layer: int, position: int, tiles: int) -> int:
        """What the hardware sends."""
        return (self.base + self.layer * layer + self.position * position + self.tiles * tiles) & 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """One execution of one node: the words of its varying fields in the order of the fields."""

    target: int
    words: tuple[Word, ...] = ()
    awaited: bool = False
    barrier: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.target < 1 << 16:
            raise ValueError(f"descriptor target must be 0 to 65535, not {self.target}")
        if len(self.words) > 255:
            raise ValueError(f"a descriptor has at most 255 words, not {len(self.words)}")


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """Descriptors sent `repeats` times over, `layer` counting from 0."""

    descriptors: tuple[Descriptor, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        if not self.descriptors:
            raise ValueError("a section of a phase table needs at least one descriptor")
        if not 1 <= self.repeats < 1 << 16:
            raise ValueError(f"repeats of a section must be 1 to 65535, not {self.repeats}")
        slots = sum(1 + len(d.words) for d in self.descriptors)
        if slots > MAX_SLOTS:
            raise ValueError(f"a section has at most {MAX_SLOTS} headers and words, not {slots}")

    def pack(self) -> np.ndarray:
        """int32 array (beats * 4, 4): the slots."""
        rows: list[tuple[int, int, int, int]] = []
        for d in self.descriptors:
            header = d.target | len(d.words) << 16 | d.awaited << 24 | d.barrier << 25 | 1 << 31
            rows.append((header - (1 << 32), 0, 0, 0))
            rows += [(w.base, w.layer, w.position, w.tiles) for w in d.words]
        rows += [(0, 0, 0, 0)] * (-len(rows) % 4)
        return np.array(rows, "<i4")


@dataclass(frozen=True, kw_only=True)
class PhaseTable:
    """The program: which descriptors go to which node, in order."""

    sections: tuple[TableSection, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sections) <= MAX_SECTIONS:
            raise ValueError(f"a phase table has 1 to {MAX_SECTIONS} sections, not {len(self.sections)}")

    def pack(self) -> bytes:
        """The buffer of role `table`."""
        bodies = [section.pack() for section in self.sections]
        directory = np.zeros(16, "<u4")
        directory[:2] = TABLE_MAGIC, len(bodies)
        for s, (section, body) in enumerate(zip(self.sections, bodies, strict=True)):
            directory[2 + 2 * s : 4 + 2 * s] = len(body) // 4, section.repeats
        raw = directory.tobytes() + b"".join(body.tobytes() for body in bodies)
        return raw + bytes(-len(raw) % TABLE_CHUNK)

    @property
    def beats_read(self) -> int:
        """Beats that the hardware reads of it in a run: a chunk, then every walk of every section, but for
        what the chunk holds of the first one."""
        chunk = TABLE_CHUNK // BEAT_BYTES
        bodies = [(len(section.pack()) // 4, section.repeats) for section in self.sections]
        return chunk + sum(beats * repeats for beats, repeats in bodies) - min(bodies[0][0], chunk - 1)

    def expand(self, *, position: int, tiles: int) -> list[tuple[Descriptor, tuple[int, ...]]]:
        """Every descriptor that a run sends, in order, with the values of its words."""
        return [
            (d, tuple(w.value(layer=layer, position=position, tiles=tiles) for w in d.words))
            for section in self.sections
            for layer in range(section.repeats)
            for d in section.descriptors
        ]
