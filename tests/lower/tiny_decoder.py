"""Small random decoders of the Llama family."""

import numpy as np

from streamgen.graph.decoder import Attention, Decoder, DecoderLayer, GatedFeedForward, Norm, Rotary
from streamgen.graph.ops import Linear

__all__ = ["tiny_decoder"]


def tiny_decoder(
    seed: int = 0,
    *,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    dims: int = 16,
    wide: int = 96,
    vocabulary: int = 64,
    layers: int = 2,
    context: int = 64,
) -> Decoder:
    """Weights are normal, scaled so that values stay near one."""
    rng = np.random.default_rng(seed)

    def linear(n: int, k: int) -> Linear:
        return Linear((rng.normal(size=(n, k)) / np.sqrt(k)).astype(np.float32))

    def norm() -> Norm:
        return Norm("rms", (1 + 0.1 * rng.normal(size=hidden)).astype(np.float32), 1e-5)

    def layer() -> DecoderLayer:
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dims,
            q=linear(heads * dims, hidden),
            k=linear(kv_heads * dims, hidden),
            v=linear(kv_heads * dims, hidden),
            o=linear(hidden, heads * dims),
            scale=dims**-0.5,
            rotary=Rotary(10000.0 ** (-np.arange(0, dims, 2) / dims)),
        )
        block = GatedFeedForward(
            gate=linear(wide, hidden), up=linear(wide, hidden), down=linear(hidden, wide), function="silu"
        )
        return DecoderLayer(norm(), attention, norm(), block)

    embedding = rng.normal(size=(vocabulary, hidden)).astype(np.float32)
    parts = tuple(layer() for _ in range(layers))
    return Decoder("tiny", embedding, parts, norm(), linear(vocabulary, hidden), context)
