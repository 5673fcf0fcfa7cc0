"""A small transformers model for tests of checkpoints, and what it must give."""

import warnings
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize

from streamgen.model.graph.logical import LogicalGraph
from tests.shared.decoders import stepper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers.activations import ACT2FN

HIDDEN, FEATURES, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 96, 4, 2, 16, 48
BOUND = 5e-6  # of the largest logit: float32 norms and angles inside a float64 transformers model leave 2e-7
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


def stored(array: np.ndarray, kind: Kind, seed: int) -> np.ndarray:
    """A tensor [N, K] as a GGUF file holds it; random blocks of Q4_K and Q6_K, to which the library does not
    quantise."""
    if kind not in (Kind.Q4_K, Kind.Q6_K):
        return quantize(array, kind)
    rng = np.random.default_rng(seed)
    weights, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (len(array), array.shape[1] // weights, size), np.uint8)
    if kind == Kind.Q4_K:  # a factor of scales and one of minimums come first
        data[..., :4] = rng.uniform(1e-4, 1e-3, (*data.shape[:2], 2)).astype(np.float16).view(np.uint8)
    else:  # the factor of scales comes last
        data[..., -2:] = rng.uniform(1e-5, 5e-5, (*data.shape[:2], 1)).astype(np.float16).view(np.uint8)
    return data.reshape(len(array), -1)


class _LogGamma(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x)


ACT2FN["lgamma"] = _LogGamma
"""A function that nothing here computes, as the value of `hidden_act`."""


def llama(kind: str = "Llama", **changes: Any) -> Any:
    """A model of two layers with random norms; changes: of its config. kind: also "Mistral"."""
    torch.manual_seed(1)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEATURES,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-5,
    }
    made = getattr(transformers, f"{kind}Config")(**config | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(made).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def add_words(writer: gguf.GGUFWriter, tokens: int) -> None:
    """A tokenizer of so many tokens, a character each but for the last."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(ord("!") + index) for index in range(tokens - 1)), "!!"])
    writer.add_token_types([1] * tokens)
    writer.add_token_merges(["! !"])


def require_same(decoder: LogicalGraph, model: Any) -> None:
    """The decoder gives the model's logits, in several passes."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(ids)[None]).logits[0].numpy()
    step = stepper(decoder)
    parts = [step(ids[:9]), *(step([token]) for token in ids[9:])]
    assert np.abs(np.concatenate(parts) - expected).max() <= BOUND * np.abs(expected).max()
