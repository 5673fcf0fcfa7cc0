"""The files of a checkpoint's folder: each is read, is known to change no result, or is refused by name."""

import re
from collections.abc import Mapping
from pathlib import Path

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.safetensors_file import weight_files

_BY_REASON: Mapping[str, str] = {
    "the model": (
        r"config\.json|model.*\.safetensors|model.*\.safetensors\.index\.json|consolidated.*\.safetensors"
    ),
    "the same weights in forms that are not read where there are safetensors": (
        r"pytorch_model.*\.bin|pytorch_model.*\.bin\.index\.json|consolidated.*\.pth|tf_model\.h5"
        r"|flax_model.*\.msgpack|rust_model\.ot|model.*\.ckpt.*|.*\.gguf|.*\.onnx|.*\.onnx_data|.*\.mlmodel|openvino_.*|params\.json"
    ),
    "texts, which the readers of tokenizers and generation settings read": (
        r"generation_config\.json|tokenizer.*|special_tokens_map\.json|added_tokens\.json|chat_template\..*"
        r"|vocab\..*|merges\.txt|.*\.model|.*\.tiktoken|tekken\.json|spiece\..*|normalizer\.json|bpe\.codes"
    ),
    "images and sounds, which a text has none of": r".*preprocessor_config\.json|processor_config\.json",
    "code, which is never run, and config.json names where it matters": r".*\.py|.*\.ipynb",
    "how a packed checkpoint was quantised, which config.json says too": (
        r"quant(ize)?_config\.json|quant_log\.csv"
    ),
    "how the model was trained and measured": (
        r"training_args.*|trainer_state\.json|optimizer.*|scheduler\.pt|rng_state.*|scaler\.pt|.*results.*\.json"
        r"|latest|.*metrics.*\.json|zero_to_fp32\.py|events\.out\..*|runs|.*\.log"
    ),
    "the pooling of a sentence encoder, of which a text has none": (
        r"modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json"
    ),
}
KNOWN = re.compile("|".join(f"(?:{names})" for names in _BY_REASON.values()))
READ = (".json", ".jinja", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".h5", ".msgpack")
"""Endings of the files that readers of models read; no other file can change a model."""

ADAPTER = re.compile(r"adapter_config\.json|adapter_model.*|adapters?\.safetensors|adapters?\.bin")


def file_problems(folder: Path) -> list[str]:
    """The problems with the files of a folder: adapters, and files whose meaning is not known. Hidden files
    and folders are ignored, because nothing reads them."""
    try:
        weights = {path.name for path in weight_files(folder)}
    except CheckpointError:  # the reader of weights reports this
        weights = set()
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    adapters = [name for name in names if ADAPTER.fullmatch(name)]
    unknown = [
        name
        for name in names
        if name.endswith(READ) and name not in (*adapters, *weights) and not KNOWN.fullmatch(name)
    ]
    remedy = "if it is not part of the model, move it out of the folder"
    problems = [f"file {name} is not known; {remedy}" for name in unknown]
    if adapters:
        problems.append(
            f"{', '.join(adapters)}: an adapter lies beside the model; merge it into the weights "
            "(merge_and_unload of the library peft), or move it out of the folder"
        )
    return problems
