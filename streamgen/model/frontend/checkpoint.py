"""Decoders from checkpoints: one function for GGUF files and for folders of safetensors."""

from pathlib import Path

from streamgen.base.turns import one_at_a_time
from streamgen.model.frontend.gguf_decoder import load_gguf_decoder
from streamgen.model.frontend.gguf_file import architecture_of, open_gguf
from streamgen.model.frontend.gguf_pretrained import load_gguf_pretrained
from streamgen.model.frontend.packed_weights import load_packed
from streamgen.model.frontend.pretrained import load_pretrained
from streamgen.model.frontend.safetensors_decoder import is_llama, load_safetensors_decoder
from streamgen.model.frontend.safetensors_file import read_config
from streamgen.model.graph.logical import LogicalGraph


@one_at_a_time
def load_decoder(path: str | Path, context: int | None = None) -> LogicalGraph:
    """The decoder of a checkpoint; CheckpointError says what is wrong with it.

    path: a GGUF file, or a folder with config.json and *.safetensors. Llama and Mistral are read directly;
    all other families are read by transformers (`pip install 'streamgen[models]'`), for texts of up to
    `context` positions, or 2,048 if none is given. Weights are float32. Linear operations keep the grid of
    Q4_0, Q4_1 and Q4_K tensors and of weights that GPTQ or AWQ have packed; those of other quantised tensors
    ask for 8 bits. The rows of q and k are in halves (no `Rotary` of a Llama is interleaved). A tied head
    shares the array of the embedding.
    """
    path = Path(path)
    if not path.is_dir():
        reader = open_gguf(path)
        if architecture_of(path, reader) == "llama":
            return load_gguf_decoder(path, reader)
        return load_gguf_pretrained(path, reader, context)
    config = read_config(path)
    if config.get("quantization_config"):
        return load_packed(path, config, context)
    return load_safetensors_decoder(path) if is_llama(config) else load_pretrained(path, context)
