"""The heads of an attention, as passes read them."""

from typing import Protocol


class AttentionHeads(Protocol):
    """Query heads that attend over the rows of keys and values, which are inputs 1 and 2 of the operation."""

    @property
    def heads(self) -> int:
        """The number of query heads."""

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and of values."""

    @property
    def head_dim(self) -> int:
        """The number of features of a head."""

    @property
    def group(self) -> int:
        """The number of query heads that share a head of keys."""

    @property
    def takes_one_position(self) -> bool:
        """Whether it takes one position per cycle in any design."""

    @property
    def p_bits(self) -> int:
        """Bits of the integers of the softmax."""
