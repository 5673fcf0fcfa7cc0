"""The layout of a boundary tensor in memory: the token stream of its port, token after token.

    element slot   Bits of an element, rounded up to a power of two. f24 takes 32 bits with the value in the
                   upper 24, so that memory holds legal float32. Integers are sign-extended to their slot.
    token slot     elements * element slot, rounded up to a power of two up to 512 bits, above that to a
                   multiple of 512 bits
    beat           512 bits, little-endian, with the first token (or the first part of a token) lowest

Padding bits are zero. The hardware that reads and writes memory uses the same numbers.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from streamgen.itensor import ITensor
from streamgen.numbers import formats

BEAT_BITS = 512
BEAT_BYTES = BEAT_BITS // 8
ADDRESS_BITS = 40  # byte address in the memory of a card: up to 1 TB
TRANSFER_BITS = 26  # number of beats of a transfer: up to 4 GB
ID_BITS = 4  # fewest bits of the number of a client on a memory channel
MAX_ID_BITS = 16  # as many clients as a descriptor has targets
WORD_LANES = BEAT_BITS // 32  # words of a beat; f24 values are stored as float32


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of tokens of one format and shape in memory.

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
        """The layout of the tokens of a stream."""
        return cls(itensor.dtype, itensor.element_shape)

    @property
    def element_slot(self) -> int:
        """Bits of an element in memory."""
        return 1 << (formats.bits(self.dtype) - 1).bit_length()

    @property
    def elements(self) -> int:
        """Elements of a token."""
        return prod(self.element_shape)

    @property
    def token_slot(self) -> int:
        """Bits of a token in memory."""
        used = self.elements * self.element_slot
        return 1 << (used - 1).bit_length() if used <= BEAT_BITS else -(-used // BEAT_BITS) * BEAT_BITS

    @property
    def tokens_per_beat(self) -> int:
        """Tokens in a beat; 1 if a token takes one beat or more."""
        return max(1, BEAT_BITS // self.token_slot)

    @property
    def beats_per_token(self) -> int:
        """Beats of a token; 1 if a beat holds one token or more."""
        return max(1, self.token_slot // BEAT_BITS)

    def same_wires(self, other: "MemoryLayout") -> bool:
        """Whether both layouts are integers without padding and their tokens have the same number of bits.
        Example: two 4-bit elements and one 8-bit element."""
        whole = (
            layout.dtype[0] in "iu" and formats.bits(layout.dtype) == layout.element_slot
            for layout in (self, other)
        )
        return all(whole) and self.elements * self.element_slot == other.elements * other.element_slot

    def beats(self, token_count: int) -> int:
        """Beats of `token_count` tokens."""
        return -(-token_count // self.tokens_per_beat) * self.beats_per_token

    def pack(self, itensor: ITensor, array: np.ndarray) -> bytes:
        """The memory image of a tensor, a multiple of 64 bytes. Raises ValueError if `itensor` has tokens of
        another layout, and the errors of `formats.encode` and `ITensor.to_tokens`."""
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
        """Inverse of `pack`. Raises ValueError if the image is not exactly as long as the tensor."""
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
        """The format with the bits of an element slot."""
        if self.dtype == "f24":
            return "f32"
        return f"{self.dtype[0]}{self.element_slot}" if self.dtype[0] in "iu" else self.dtype

    def _check(self, itensor: ITensor) -> None:
        if MemoryLayout.of(itensor) != self:
            raise ValueError(f"{itensor} has other tokens than {self}")

    def _check_range(self, tokens: np.ndarray) -> None:
        """Raise ValueError if a slot holds a value that the format cannot represent."""
        if self._slot_dtype != self.dtype:
            formats.encode(self.dtype, tokens)
