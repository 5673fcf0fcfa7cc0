"""Models of transformers that generate no text: small ones of each family, and whole ones."""

from collections.abc import Callable
from typing import Any

import torch
import transformers

__all__ = ["SMALL", "VOCABULARY", "WHOLE", "encoded", "made", "small"]

VOCABULARY = 50
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
DISTIL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
LOCAL = {"local_attention": 6, "global_attn_every_n_layers": 2, **SPECIAL}
SMALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Bert": ("BertModel", "BertConfig", SIZES),
    "Bert tokens": ("BertForTokenClassification", "BertConfig", SIZES),
    "Bert sequence": ("BertForSequenceClassification", "BertConfig", SIZES),
    "DistilBert": ("DistilBertModel", "DistilBertConfig", DISTIL),
    "DistilBert tokens": ("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    "Roberta": ("RobertaModel", "RobertaConfig", SIZES),
    "Roberta sequence": ("RobertaForSequenceClassification", "RobertaConfig", SIZES),
    "Electra": ("ElectraModel", "ElectraConfig", {**SIZES, "embedding_size": 16}),
    "Electra tokens": ("ElectraForTokenClassification", "ElectraConfig", {**SIZES, "embedding_size": 16}),
    "ModernBert": ("ModernBertModel", "ModernBertConfig", {**SIZES, **LOCAL}),
    "ModernBert sequence": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**SIZES, **LOCAL, "classifier_pooling": "mean"},
    ),
    "Albert": ("AlbertModel", "AlbertConfig", {**SIZES, "embedding_size": 16}),
    "Deberta": ("DebertaV2Model", "DebertaV2Config", SIZES),
}
"""By family: the class of the model, the class of its configuration, and its fields."""

WHOLE = {
    "Bert": ("BertModel", "BertConfig", {}),
    "DistilBert tokens": ("DistilBertForTokenClassification", "DistilBertConfig", {}),
    "Roberta sequence": ("RobertaForSequenceClassification", "RobertaConfig", {}),
    "Electra tokens": ("ElectraForTokenClassification", "ElectraConfig", {}),
    "ModernBert": ("ModernBertModel", "ModernBertConfig", {}),
    "Albert": ("AlbertModel", "AlbertConfig", {}),
}
"""The defaults of each configuration."""


def small(family: str, **fields: Any) -> Any:
    """A model of `SMALL` with random weights, in eval mode."""
    return made(*SMALL[family], **fields)


def made(kind: str, config: str, sizes: dict[str, Any], **fields: Any) -> Any:
    """A model of a class of transformers with random weights, in eval mode."""
    torch.manual_seed(3)
    make: Callable[..., Any] = getattr(transformers, config)
    return getattr(transformers, kind)(make(**{**sizes, **fields})).eval()


def encoded(tokens: int, texts: int = 1, *, types: bool = False) -> dict[str, torch.Tensor]:
    """What a tokenizer makes of texts: ids without padding, and a mask of ones. types: also the numbers of
    their sentences."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(3, VOCABULARY, (texts, tokens), generator=generator)
    more = {"token_type_ids": (torch.arange(tokens) * 2 // tokens).expand(texts, -1)} if types else {}
    return {"input_ids": ids, **more, "attention_mask": torch.ones_like(ids)}
