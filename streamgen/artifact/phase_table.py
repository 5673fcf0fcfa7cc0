"""The program of an accelerator: the descriptors of each node in order, and their bytes in memory.

The phase table (role `table`) has little-endian slots of 128 bits, four to a beat of 64 bytes:

* Beat 0 is the directory. Word 0 is `TABLE_MAGIC`. Word 1 is the number of sections, at most 7. Words 2 + 2s
  and 3 + 2s are the beats and the repeats of section s; they are 0 for unused sections.
* The sections follow. Each section is filled up with zero slots to a whole beat. The sequencer walks section
  s `repeats` times; `layer` counts the walks from 0.
* A section is a list of descriptors. A descriptor is a header slot, then one slot for each word. Bits 0-15 of
  the header are the target, bits 16-23 the number of words. Bit 24 (awaited): the run waits for the
  completion of this descriptor. Bit 25 (barrier): hold the descriptor until all awaited ones so far are
  complete. Bit 31 is always 1. The slot of a word has four signed 32-bit numbers: base, layer, position,
  tiles. The word sent is base + layer*l + position*p + tiles*t modulo 2^32, where l is the walk and p and t
  are the arguments `position` and `tiles`. Words that grow with the rows of a source have another base for
  each number of rows. A zero slot ends the last beat of a section.
* The table is filled up with zeros to a multiple of `TABLE_CHUNK` bytes, because the hardware reads a chunk
  before it knows the length.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES

TABLE_MAGIC = 0x54504753  # "SGPT"
TABLE_CHUNK = 1024
MAX_SECTIONS = 7
MAX_SLOTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Word:
    """A descriptor word: base + layer*l + position*p + tiles*t + source*s. The host adds the last product to
    the base, where s is the number of rows of the source of the text."""

    base: int = 0
    layer: int = 0
    position: int = 0
    tiles: int = 0
    source: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not -(2**31) <= value < 2**31:
                raise ValueError(f"descriptor word: {field.name} must fit 32 bits signed, not {value}")

    def value(self, *, layer: int, position: int, tiles: int, source: int = 0) -> int:
        """The word that the hardware sends."""
        base = self.base + self.source * source
        return (base + self.layer * layer + self.position * position + self.tiles * tiles) & 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """One execution of a node. words: its varying fields, in the order of the fields. awaited, barrier: see
    the docstring of the module."""

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
    """Descriptors that are sent `repeats` times; `layer` counts the repeats from 0."""

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

    def pack(self, source: int = 0) -> np.ndarray:
        """The slots as an int32 array of shape (beats * 4, 4). source: rows of the source."""
        rows: list[tuple[int, int, int, int]] = []
        for d in self.descriptors:
            header = d.target | len(d.words) << 16 | d.awaited << 24 | d.barrier << 25 | 1 << 31
            rows.append((header - (1 << 32), 0, 0, 0))
            rows += [(w.base + w.source * source, w.layer, w.position, w.tiles) for w in d.words]
        rows += [(0, 0, 0, 0)] * (-len(rows) % 4)
        return np.array(rows, "<i4")


@dataclass(frozen=True, kw_only=True)
class PhaseTable:
    """The program: the descriptors of each node, in order."""

    sections: tuple[TableSection, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sections) <= MAX_SECTIONS:
            raise ValueError(f"a phase table has 1 to {MAX_SECTIONS} sections, not {len(self.sections)}")

    @cached_property
    def reads_source(self) -> bool:
        """Whether words depend on the rows of a source."""
        return any(w.source for section in self.sections for d in section.descriptors for w in d.words)

    def pack(self, source: int = 0) -> bytes:
        """The contents of the buffer of role `table`. source: rows of the source of the text."""
        bodies = [section.pack(source) for section in self.sections]
        directory = np.zeros(16, "<u4")
        directory[:2] = TABLE_MAGIC, len(bodies)
        for s, (section, body) in enumerate(zip(self.sections, bodies, strict=True)):
            directory[2 + 2 * s : 4 + 2 * s] = len(body) // 4, section.repeats
        raw = directory.tobytes() + b"".join(body.tobytes() for body in bodies)
        return raw + bytes(-len(raw) % TABLE_CHUNK)

    @property
    def beats_read(self) -> int:
        """Beats of the table that the hardware reads in a run: a chunk, then all walks of all sections, minus
        the part of the first section that the chunk holds."""
        chunk = TABLE_CHUNK // BEAT_BYTES
        bodies = [(len(section.pack()) // 4, section.repeats) for section in self.sections]
        return chunk + sum(beats * repeats for beats, repeats in bodies) - min(bodies[0][0], chunk - 1)

    def expand(
        self, *, position: int, tiles: int, source: int = 0
    ) -> list[tuple[Descriptor, tuple[int, ...]]]:
        """All descriptors that a run sends, in order, with the values of their words."""
        return [
            (d, tuple(w.value(layer=layer, position=position, tiles=tiles, source=source) for w in d.words))
            for section in self.sections
            for layer in range(section.repeats)
            for d in section.descriptors
        ]
