"""A decoder in numpy, bit for bit as the accelerator computes it, fast enough to measure quality.

It stands above the kernels, whose own goldens it calls; only matmuls are computed in another way, and held
to the kernels' by tests.
"""

from streamgen.golden_decoder.decoder import GoldenDecoder, Session

__all__ = ["GoldenDecoder", "Session"]
