"""What a case of the sweep is."""

from typing import Any

from streamgen.contract import Bounds
from streamgen.itensor import ITensor

__all__ = ["Case", "stream_of_bits"]

Case = tuple[Any, Bounds | None]


def stream_of_bits(bits: int) -> ITensor:
    """Four tokens of so many bits: beyond 32 of elements of 8."""
    shape, dtype = ((1,), f"u{bits}") if bits <= 32 else ((bits // 8,), "u8")
    return ITensor(shape, dtype, (4,), shape, ((0,),))
