"""Decoders out of checkpoints: one call for a GGUF file and for a folder of safetensors."""

from pathlib import Path

from streamgen.frontend.gguf_decoder import load_gguf_decoder
from streamgen.frontend.safetensors_decoder import load_safetensors_decoder
from streamgen.graph.logical import LogicalGraph

__all__ = ["load_decoder"]


def load_decoder(path: str | Path) -> LogicalGraph:
    """The decoder of a Llama-type checkpoint; CheckpointError says what is wrong with it.

    path: a GGUF file of architecture llama, or a folder with config.json and *.safetensors. Weights are
    float32; Linear operations of Q4_0 and Q4_1 tensors keep their grid. Rows of q and k lie in halves
    (no `Rotary` is interleaved). A tied head has the array of the embedding.

    A UserWarning names other kinds of quantisation in a GGUF file (Q4_K, Q5_0 ...): these are dequantised,
    and quantised again when the decoder is compiled.
    """
    path = Path(path)
    return load_safetensors_decoder(path) if path.is_dir() else load_gguf_decoder(path)
