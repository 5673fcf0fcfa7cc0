"""How a boundary tensor lies in memory: the token stream of its port, token after token.

    element slot   the next power of two that holds an element; f24 takes 32 bits, its value in the upper
                   24, so that memory holds legal float32; integers lie sign-extended in their slot
    token slot     elements * element slot, rounded up to a power of two up to 512 bits, beyond that to a
                   multiple of 512
    beat           512 bits, little-endian, the first token (or the first part of a token) lowest

Padding bits are zero. The hardware that reads and writes memory uses the same numbers.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from streamgen.itensor import ITensor
from streamgen.numbers import formats

BEAT_BITS = 512
BEAT_BYTES = BEAT_BITS // 8
ADDRESS_BITS = 40  # of a byte in the memory of a card: 1 TB
TRANSFER_BITS = 26  # of the beats of a transfer: 4 GB
ID_BITS = 4  # of the number of a client on a memory channel, at least
MAX_ID_BITS = 16  # as many clients as a descriptor has targets
WORD_LANES = BEAT_BITS // 32  # words of a beat: values of 24 bits lie as float32


@dataclass(frozen=True)
class MemoryLayout:
    """The place of tokens of one format and shape in memory.

    Raises ValueError for the mx formats, which never leave the chip.
    """

    dtype: str
    element_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if formats.is_mx(self.dtype):
            raise ValueError(f"{self.dtype} has no layout in memory")
        if not self.element_shape or min(self.element_shape) < 1:
            raise ValueError(f"element_shape must hold extents of at least 1; it is {self.element_shape}")

    @classmethod
    def of(cls, itensor: ITensor) -> "MemoryLayout":
        """The layout of the tokens of this stream."""
        return cls(itensor.dtype, itensor.element_shape)

    @property
    def element_slot(self) -> int:
        """Bits that an element takes."""
        return 1 << (formats.bits(self.dtype) - 1).bit_length()

    @property
    def elements(self) -> int:
        """Of a token."""
        return prod(self.element_shape)

    @property
    def token_slot(self) -> int:
        """Bits that a token takes."""
        used = self.elements * self.element_slot
        return 1 << (used - 1).bit_length() if used <= BEAT_BITS else -(-used // BEAT_BITS) * BEAT_BITS

    @property
    def tokens_per_beat(self) -> int:
        """Tokens in a beat, 1 when a token takes one beat or more."""
        return max(1, BEAT_BITS // self.token_slot)

    @property
    def beats_per_token(self) -> int:
        """Beats of a token, 1 when a beat holds one token or more."""
        return max(1, self.token_slot // BEAT_BITS)

    def same_wires(self, other: "MemoryLayout") -> bool:
        """Whether tokens of integers without padding take the same bits: 4-bit ones, half as many of 8."""
        whole = (
            one.dtype[0] in "iu" and formats.bits(one.dtype) == one.element_slot for one in (self, other)
        )
        return all(whole) and self.elements * self.element_slot == other.elements * other.element_slot

    def beats(self, token_count: int) -> int:
        """Beats of so many tokens."""
        return -(-token_count // self.tokens_per_beat) * self.beats_per_token

    def pack(self, itensor: ITensor, array: np.ndarray) -> bytes:
        """Memory image of a tensor, a multiple of 64 bytes; raises as `encode` and `to_tokens` do."""
        self._check(itensor)
        tokens = itensor.to_tokens(np.asarray(array))
        holder = formats.numpy_dtype(self.dtype)
        if tokens.dtype != holder:
            tokens = formats.decode(self.dtype, formats.encode(self.dtype, tokens), self.element_shape)
        self._check_range(tokens)
        tokens = tokens.reshape(len(tokens), -1)
        slots = self.token_slot // self.element_slot
        padded = tokens
        if tokens.shape[1] != slots:
            padded = np.zeros((len(tokens), slots), holder)
            padded[:, : tokens.shape[1]] = tokens
        image = formats.encode(self._slot_dtype, padded.reshape(1, -1)).tobytes()
        return image.ljust(self.beats(len(tokens)) * BEAT_BYTES, b"\0")

    def unpack(self, itensor: ITensor, image: bytes) -> np.ndarray:
        """Inverse of `pack`; ValueError when the image is not exactly as long as the tensor."""
        self._check(itensor)
        count, slots = itensor.token_count, self.token_slot // self.element_slot
        length = self.beats(count) * BEAT_BYTES
        if len(image) != length:
            raise ValueError(
                f"{count} tokens of {self.dtype} take {length} bytes; the image has {len(image)}"
            )
        used = np.frombuffer(image, np.uint8)[: -(-count * self.token_slot // 8)]
        elements = formats.decode(self._slot_dtype, used[None], (count * slots,)).reshape(count, slots)
        tokens = elements[:, : prod(self.element_shape)].reshape(count, *self.element_shape)
        self._check_range(tokens)
        return itensor.from_tokens(tokens)

    @property
    def _slot_dtype(self) -> str:
        """The format that fills an element slot."""
        if self.dtype == "f24":
            return "f32"
        return f"{self.dtype[0]}{self.element_slot}" if self.dtype[0] in "iu" else self.dtype

    def _check(self, itensor: ITensor) -> None:
        if MemoryLayout.of(itensor) != self:
            raise ValueError(f"{itensor} has other tokens than {self}")

    def _check_range(self, tokens: np.ndarray) -> None:
        """Raise ValueError when the slots hold what the format cannot."""
        if self._slot_dtype != self.dtype:
            formats.encode(self.dtype, tokens)
