"""How the KV cache lies in memory: one function of the layout for hardware, golden and host.

    row r of head h of layer l at position p      (a row: the codes of a head, or the scales of a position)
    channel  p mod channels
    beat     ((l * heads + h) * rows_per_channel + p div channels) * row_beats     from the cache's base there

A layer is so a block of `layer_beats` in every channel, in it each head has a stripe, in that lie the rows of
every `channels`-th position: whoever reads the first n rows of a head reads one piece of each channel from
its beginning on. A row is padded with zeros to whole beats, since memory is written in whole beats: it is
stored without touching its neighbours. A row of scales therefore holds those of all heads of a position, in
one stripe (`heads` = 1); with a row for each scale fifteen sixteenths would be padding.

K codes, K scales, V codes and V scales are four caches of this kind, each with its own layout and base.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamgen.artifact.packing import BEAT_BITS, MemoryLayout
from streamgen.itensor import ITensor
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """dtype, width: of a row. heads: rows of a position. layers, positions: the most there are.

    channels: a power of two. ValueError for anything less than 1, and beyond 2^32 - 1 beats a channel.
    """

    dtype: str
    width: int
    heads: int
    layers: int
    positions: int
    channels: int

    def __post_init__(self) -> None:
        for name in ("width", "heads", "layers", "positions", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"KvLayout.{name} is {getattr(self, name)}; at least 1 is needed")
        if self.channels & (self.channels - 1):
            raise ValueError(f"KvLayout.channels is {self.channels}; it must be a power of two")
        if self.beats >= 1 << 32:
            raise ValueError(f"the cache has {self.beats} beats a channel; 2^32 - 1 are allowed")

    @property
    def padded_width(self) -> int:
        """Elements of a row in memory."""
        in_beat = BEAT_BITS // MemoryLayout(self.dtype, (1, 1)).element_slot
        return -(-self.width // in_beat) * in_beat

    @property
    def memory(self) -> MemoryLayout:
        """The tokens of its loads and stores: a row each, of whole beats."""
        return MemoryLayout(self.dtype, (1, self.padded_width))

    @property
    def row_beats(self) -> int:
        return self.memory.beats_per_token

    @property
    def rows_per_channel(self) -> int:
        """Rows of a stripe."""
        return -(-self.positions // self.channels)

    @property
    def stripe_beats(self) -> int:
        return self.rows_per_channel * self.row_beats

    @property
    def layer_beats(self) -> int:
        """Beats of a layer in one channel."""
        return self.heads * self.stripe_beats

    @property
    def beats(self) -> int:
        """Beats of the cache in one channel."""
        return self.layers * self.layer_beats

    def place(self, layer: int, head: int, position: int) -> tuple[int, int]:
        """(channel, beat) of a row; ValueError when there is none such."""
        for name, value, count in (
            ("layer", layer, self.layers),
            ("head", head, self.heads),
            ("position", position, self.positions),
        ):
            if not 0 <= value < count:
                raise ValueError(f"{name} is {value}; the cache has {count}")
        stripe, row = layer * self.heads + head, position // self.channels
        return position % self.channels, (stripe * self.rows_per_channel + row) * self.row_beats

    def rows(self, count: int) -> tuple[int, ...]:
        """How many of the first `count` positions lie in each channel."""
        return tuple(-(-(count - channel) // self.channels) for channel in range(self.channels))

    def traffic(self, first: int, count: int) -> dict[str, int]:
        """Beats of `count` positions from `first` on, of a layer, by the memory port of their channel."""
        ends = zip(self.rows(first), self.rows(first + count), strict=True)
        return {f"memory_{c}": self.heads * self.row_beats * (b - a) for c, (a, b) in enumerate(ends)}

    def pack(self, array: np.ndarray) -> tuple[bytes, ...]:
        """Images of the channels from [layers, heads, positions, width]; raises as `MemoryLayout.pack`."""
        shape = (self.layers, self.heads, self.positions, self.width)
        if array.shape != shape:
            raise ValueError(f"the cache holds {shape}; the array has {array.shape}")
        images = []
        for channel in range(self.channels):
            rows = np.zeros((*shape[:2], self.rows_per_channel, self.padded_width), array.dtype)
            mine = array[:, :, channel :: self.channels]
            rows[:, :, : mine.shape[2], : self.width] = mine
            images.append(self.memory.pack(self.order, rows.reshape(-1, self.padded_width)))
        return tuple(images)

    def unpack(self, images: Sequence[bytes]) -> np.ndarray:
        """Inverse of `pack`; ValueError for images of another number or length."""
        if len(images) != self.channels:
            raise ValueError(f"the cache lies in {self.channels} channels; there are {len(images)} images")
        shape = (self.layers, self.heads, self.positions, self.width)
        array = np.zeros(shape, formats.numpy_dtype(self.dtype))
        for channel, image in enumerate(images):
            rows = self.memory.unpack(self.order, image).reshape(*shape[:2], self.rows_per_channel, -1)
            here = array[:, :, channel :: self.channels]
            here[:] = rows[:, :, : here.shape[2], : self.width]
        return array

    @property
    def order(self) -> ITensor:
        """All rows of a channel, one after the other: how its buffer lies in memory."""
        count = self.layers * self.heads * self.rows_per_channel
        return ITensor(self.memory.element_shape, self.dtype, (count,), (1,), ((0,), ()))
