"""The layout of the weights of a matmul column in memory: one stream of beats in the order of use.

The column reads three streams of tokens: codes, group scales (with their minimums) and row scales.
`artifact.packing` packs each of them. The column uses them tile by tile of output rows, and step by step in a
tile. The beats of the three streams are merged; each beat comes where it is first needed:

    for each tile of rows, for each of its tokens of codes:
        beats of row scales, until the scales of all rows of the tile are there  (before the first token)
        beats of group scales, until the scales of the token are there           (for weights in groups)
        beats of codes, until the token is there

The merged stream has the beats of the three streams. A reader knows the kind of each beat by counting. If the
last tile has fewer rows than the others, beats of its tokens of codes that have only padding are left out.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.itensor import ITensor, without_reuse

ROWS, SCALES, CODES = range(3)
"""Kinds of beats, in the order in which a token needs them."""

PORTS = {ROWS: "r", SCALES: "s", CODES: "w"}


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """The streams of a column: codes `w`, row scales `r` and, for weights in groups, group scales `s`.

    Each stream has each tile once. Its outermost loop is the loop over tiles of rows. last_beats: beats of a
    token of codes in the last tile; None: as many as in the others. The codes in beats that are left out are
    0.
    """

    w: ITensor
    r: ITensor
    s: ITensor | None = None
    last_beats: int | None = None

    def __post_init__(self) -> None:
        most = MemoryLayout.of(self.w).beats_per_token
        if self.last_beats is not None and not 1 <= self.last_beats < most:
            raise ValueError(
                f"last_beats is {self.last_beats}; tokens of {most} beats have 1 to {most - 1} there"
            )

    @classmethod
    def of(
        cls, w: ITensor, r: ITensor, s: ITensor | None = None, last_beats: int | None = None
    ) -> "WeightLayout":
        """The layout for the streams that a column reads, even if it reads a tile several times."""
        s = None if s is None else without_reuse(s)
        return cls(w=without_reuse(w), r=without_reuse(r), s=s, last_beats=last_beats)

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
        """New beats that each token of codes needs, by kind: int64 [tiles * words, 3]."""
        needed = np.zeros((self.tiles * self.words, 3), np.int64)
        number = np.arange(len(needed))
        needed[:, CODES] = _first_needs(self.w, number)
        if self.last_beats is not None:
            needed[-self.words :, CODES] = self.last_beats
        needed[:: self.words, ROWS] = _first_needs(self.r, (np.arange(self.tiles) + 1) * self.tile_rows - 1)
        if self.s is not None:
            again = len(needed) // self.s.token_count
            needed[:, SCALES] = _first_needs(self.s, number // again)
        return needed

    @property
    def beats(self) -> int:
        """Beats of the whole stream."""
        whole = sum(MemoryLayout.of(it).beats(it.token_count) for it in self._streams.values())
        if self.last_beats is None:
            return whole
        return whole - self.words * (MemoryLayout.of(self.w).beats_per_token - self.last_beats)

    @cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each beat, uint8."""
        needs = self.needs
        return np.repeat(np.tile(np.arange(3, dtype=np.uint8), len(needs)), needs.reshape(-1))

    @property
    def order(self) -> ITensor:
        """The stream of beats: bytes [beats, 64]."""
        return ITensor((1, BEAT_BYTES), "u8", (self.beats,), (1,), ((0,), ()))

    @cached_property
    def _kept(self) -> np.ndarray:
        """Whether each beat of the codes is in memory: bool [beats]."""
        layout = MemoryLayout.of(self.w)
        kept = np.ones(layout.beats(self.w.token_count), bool)
        if self.last_beats is not None:
            last = kept[-self.words * layout.beats_per_token :].reshape(self.words, -1)
            last[:, self.last_beats :] = False
        return kept

    @property
    def _streams(self) -> dict[int, ITensor]:
        streams = {ROWS: self.r, CODES: self.w}
        return streams if self.s is None else {**streams, SCALES: self.s}

    def pack(self, **arrays: np.ndarray) -> np.ndarray:
        """The merged beats, uint8 [beats, 64]. arrays: `w`, `r` and, for weights in groups, `s`, in the
        shapes of the streams. Raises the errors of `MemoryLayout.pack`, and ValueError for codes other than 0
        in beats that are left out."""
        merged = np.empty((self.beats, BEAT_BYTES), np.uint8)
        for kind, itensor in self._streams.items():
            image = MemoryLayout.of(itensor).pack(itensor, arrays[PORTS[kind]])
            beats = np.frombuffer(image, np.uint8).reshape(-1, BEAT_BYTES)
            if kind == CODES and self.last_beats is not None:
                if beats[~self._kept].any():
                    raise ValueError(
                        f"the last tile has codes other than 0 behind {self.last_beats} beats of a token"
                    )
                beats = beats[self._kept]
            merged[self.kinds == kind] = beats
        return merged

    def unpack(self, beats: np.ndarray) -> dict[str, np.ndarray]:
        """Inverse of `pack`. Raises ValueError for another number of beats."""
        if beats.shape != (self.beats, BEAT_BYTES):
            raise ValueError(f"the weights take beats of shape {(self.beats, BEAT_BYTES)}, not {beats.shape}")
        return {
            PORTS[kind]: MemoryLayout.of(itensor).unpack(itensor, self._image(kind, beats))
            for kind, itensor in self._streams.items()
        }

    def _image(self, kind: int, beats: np.ndarray) -> bytes:
        """The beats of a stream, with those that are left out."""
        there = beats[self.kinds == kind]
        if kind != CODES or self.last_beats is None:
            return there.tobytes()
        whole = np.zeros((len(self._kept), BEAT_BYTES), np.uint8)
        whole[self._kept] = there
        return whole.tobytes()


def _first_needs(itensor: ITensor, last: np.ndarray) -> np.ndarray:
    """New beats of each step. last: the last token that each step needs."""
    layout = MemoryLayout.of(itensor)
    upto = (last // layout.tokens_per_beat + 1) * layout.beats_per_token
    return np.diff(upto, prepend=0)
