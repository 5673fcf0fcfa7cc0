"""How the weights of a matmul column lie in memory: one sequential stream of beats in the order of use.

Three streams of tokens, each packed as `buffers.packing` says: codes, group scales (with their minimums), row
scales. The column uses them tile by tile of output rows, in a tile step by step. Their beats are merged where
they are first needed:

    for each tile of rows, for each of its tokens of codes:
        beats of row scales, until all rows of the tile are there        (before the first token of a tile)
        beats of group scales, until those of the token are there        (of weights that have them)
        beats of codes, until the token is there

so the stream has exactly the beats of the three, and whoever unpacks it knows what a beat is by counting.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.itensor import ITensor, without_reuse

ROWS, SCALES, CODES = range(3)
"""Kinds of beats."""

PORTS = {ROWS: "r", SCALES: "s", CODES: "w"}


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """streams: what a column reads, by "w", "r" and, of weights in groups, "s"; each tile once.

    The outermost loop of each is that over tiles of rows.
    """

    w: ITensor
    r: ITensor
    s: ITensor | None = None

    @classmethod
    def of(cls, w: ITensor, r: ITensor, s: ITensor | None = None) -> "WeightLayout":
        """Of streams that a column reads, however often it reads a tile."""
        return cls(w=without_reuse(w), r=without_reuse(r), s=None if s is None else without_reuse(s))

    @property
    def tiles(self) -> int:
        """Tiles of output rows."""
        return self.w.tripcounts[0]

    @property
    def words(self) -> int:
        """Tokens of codes of a tile."""
        return self.w.token_count // self.tiles

    @property
    def tile_rows(self) -> int:
        """Row scales of a tile."""
        return self.r.token_count // self.tiles

    @cached_property
    def needs(self) -> np.ndarray:
        """Beats that each token of codes needs beside those before it, by kind: [tiles * words, 3]."""
        found = np.zeros((self.tiles * self.words, 3), np.int64)
        number = np.arange(len(found))
        found[:, CODES] = _first_needs(self.w, number, len(found))
        found[:: self.words, ROWS] = _first_needs(
            self.r, (np.arange(self.tiles) + 1) * self.tile_rows - 1, self.tiles
        )
        if self.s is not None:
            again = len(found) // self.s.token_count
            found[:, SCALES] = _first_needs(self.s, number // again, len(found))
        return found

    @property
    def beats(self) -> int:
        """Beats of the whole stream."""
        return sum(MemoryLayout.of(it).beats(it.token_count) for it in self._streams.values())

    @cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each beat, uint8."""
        needs = self.needs
        return np.repeat(np.tile(np.arange(3, dtype=np.uint8), len(needs)), needs.reshape(-1))

    @property
    def order(self) -> ITensor:
        """The stream of beats: bytes [beats, 64]."""
        return ITensor((1, BEAT_BYTES), "u8", (self.beats,), (1,), ((0,), ()))

    @property
    def _streams(self) -> dict[int, ITensor]:
        streams = {ROWS: self.r, CODES: self.w}
        return streams if self.s is None else {**streams, SCALES: self.s}

    def pack(self, **arrays: np.ndarray) -> np.ndarray:
        """Beats uint8 [beats, 64] of the arrays "w", "r" and, where there are, "s", in the shapes of the
        streams; raises as `MemoryLayout.pack`."""
        merged = np.empty((self.beats, BEAT_BYTES), np.uint8)
        for kind, itensor in self._streams.items():
            image = MemoryLayout.of(itensor).pack(itensor, arrays[PORTS[kind]])
            merged[self.kinds == kind] = np.frombuffer(image, np.uint8).reshape(-1, BEAT_BYTES)
        return merged

    def unpack(self, beats: np.ndarray) -> dict[str, np.ndarray]:
        """Inverse of `pack`; ValueError for another number of beats."""
        if beats.shape != (self.beats, BEAT_BYTES):
            raise ValueError(f"the weights take beats of shape {(self.beats, BEAT_BYTES)}, not {beats.shape}")
        return {
            PORTS[kind]: MemoryLayout.of(itensor).unpack(itensor, beats[self.kinds == kind].tobytes())
            for kind, itensor in self._streams.items()
        }


def _first_needs(itensor: ITensor, last: np.ndarray, count: int) -> np.ndarray:
    """Beats that each of `count` steps needs first, when it needs all tokens up to `last`."""
    layout = MemoryLayout.of(itensor)
    upto = (last // layout.tokens_per_beat + 1) * layout.beats_per_token
    return np.diff(upto, prepend=0)
