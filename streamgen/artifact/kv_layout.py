"""The layout of the KV cache in memory, shared by the hardware, the golden model and the host.

    row of head h of layer l at position p      (a row: the codes of one head, or the scales of one position)
    channel  p mod channels
    beat     ((l * heads + h) * rows_per_channel + p div channels) * row_beats     from the base of the cache

A layer is a block of `layer_beats` in every channel. In the block each head has a stripe, which holds the
rows of every `channels`-th position. The first n rows of a head are therefore one contiguous piece of each
channel, at the start of the stripe.

Memory is written in whole beats, so a row is padded with zeros to whole beats. A row can then be stored
without changing its neighbours. A row of scales holds the scales of all heads of a position in one stripe
(`heads` = 1). With a row for each scale, 15/16 of the memory would be padding.

K codes, K scales, V codes and V scales are four caches of this kind, each with its own layout and base.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.packing import BEAT_BITS, MemoryLayout
from streamgen.itensor import ITensor
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """A KV cache in memory.

    dtype, width: format of an element, and elements of a row. heads: rows of a position. layers, positions:
    capacity of the cache. channels: number of channels, a power of two.

    Raises ValueError if a size is less than 1, or if the cache has more than 2^32 - 1 beats in a channel.
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
        """Elements of a row in memory, with padding."""
        in_beat = BEAT_BITS // MemoryLayout(self.dtype, (1, 1)).element_slot
        return -(-self.width // in_beat) * in_beat

    @property
    def memory(self) -> MemoryLayout:
        """The layout of the tokens that loads and stores transfer. A token is a row of whole beats."""
        return MemoryLayout(self.dtype, (1, self.padded_width))

    @cached_property
    def row_beats(self) -> int:
        """Beats of a row."""
        return self.memory.beats_per_token

    @property
    def rows_per_channel(self) -> int:
        """Rows of a stripe."""
        return -(-self.positions // self.channels)

    @property
    def stripe_beats(self) -> int:
        """Beats of a stripe."""
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
        """Channel and first beat of a row. Raises ValueError if the cache has no such row."""
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
        """For each channel, the number of the first `count` positions that lie in it."""
        return tuple(-(-(count - channel) // self.channels) for channel in range(self.channels))

    def traffic(self, first: int, count: int) -> dict[str, int]:
        """Beats of `count` positions of a layer from position `first` on, by memory port."""
        ends = zip(self.rows(first), self.rows(first + count), strict=True)
        return {f"memory_{c}": self.heads * self.row_beats * (b - a) for c, (a, b) in enumerate(ends)}

    def pack(self, array: np.ndarray) -> tuple[bytes, ...]:
        """The image of each channel. array: [layers, heads, positions, width]. Raises ValueError for another
        shape, and the errors of `MemoryLayout.pack`."""
        shape = (self.layers, self.heads, self.positions, self.width)
        if array.shape != shape:
            raise ValueError(f"the cache has shape {shape}; the array has shape {array.shape}")
        images = []
        for channel in range(self.channels):
            rows = np.zeros((*shape[:2], self.rows_per_channel, self.padded_width), array.dtype)
            mine = array[:, :, channel :: self.channels]
            rows[:, :, : mine.shape[2], : self.width] = mine
            images.append(self.memory.pack(self.order, rows.reshape(-1, self.padded_width)))
        return tuple(images)

    def unpack(self, images: Sequence[bytes]) -> np.ndarray:
        """Inverse of `pack`. Raises ValueError if the number or the length of the images is wrong."""
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
        """The order of the buffer of a channel in memory: all its rows, one after the other."""
        count = self.layers * self.heads * self.rows_per_channel
        return ITensor(self.memory.element_shape, self.dtype, (count,), (1,), ((0,), ()))
