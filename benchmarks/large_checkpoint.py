"""A large checkpoint becomes a folder: minutes, memory, bytes on disk; and golden continues a prompt with it.

    python benchmarks/large_checkpoint.py [NAME] [--place FOLDER] [--tokens 2]

The shape is one of benchmarks/zoo.json; the default is llama-3.1-8b. The checkpoint has files of at most 4
GB with random bf16 weights, as published checkpoints have. `streamgen compile` reads it with no option, in a
process of its own. The memory of this process is the most that it had at a time, with the pages of mapped
files. Bytes on disk are those of all files but the Verilog, as a share of the packed contents of memory.
Llama-3.1-8B needs 21 GB of disk, and some minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.zoo import SHAPES

FILE = 4_000_000_000  # most bytes of a file
GIB = 2**30
MEMORY, MINUTES, SHARE = 6.0, 12.0, 1.05  # limits: GiB, minutes, bytes on disk a packed byte


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", default="llama-3.1-8b", metavar="NAME", choices=SHAPES)
    parser.add_argument("--place", type=Path, default=None, help="folder for the files; a temporary one")
    parser.add_argument("--tokens", type=int, default=2, help="that golden writes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        source, target = Path(place, "checkpoint"), Path(place, "written")
        stored = write_checkpoint(source, SHAPES[options.name])
        seconds, memory = run("compile", f"{source}", "-o", f"{target}")
        kept = sum(
            f.stat().st_size for f in target.rglob("*") if f.is_file() and f.suffix not in (".v", ".sv")
        )
        packed = packed_bytes(target)
        shown = Table("figure", "value", "limit", title=options.name)
        shown.add_row("checkpoint", f"{stored / 1e9:.2f} GB", "")
        shown.add_row("time", f"{seconds / 60:.1f} minutes", f"{MINUTES:g}")
        shown.add_row("memory", f"{memory / GIB:.2f} GiB", f"{MEMORY:g}")
        shown.add_row("packed", f"{packed / 1e9:.2f} GB", "")
        shown.add_row("disk", f"{kept / packed:.3f} of the packed bytes", f"{SHARE}")
        if options.tokens:
            asked = ("-p", "1 2 3", "--max-new-tokens", f"{options.tokens}")
            seconds, memory = run("generate", f"{target}", "--on", "golden", *asked)
            shown.add_row(f"golden, {options.tokens} tokens behind 3", f"{seconds:.0f} s", "")
            shown.add_row("memory for that, mapped weights included", f"{memory / GIB:.2f} GiB", "")
        Console().print(shown)


def write_checkpoint(place: Path, config: Mapping[str, Any]) -> int:
    """Write a checkpoint with random weights, a file at a time; the bytes of all tensors are returned."""
    import torch
    from safetensors.torch import save_file

    place.mkdir()
    (place / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    torch.manual_seed(0)
    weight_map: dict[str, str] = {}
    all_bytes = 0
    for number, shapes in enumerate(files_of(config)):
        tensors = {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.randn(shape, dtype=torch.bfloat16) * shape[-1] ** -0.5
            for name, shape in shapes.items()
        }
        save_file(tensors, place / f"model-{number}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{number}.safetensors")
        all_bytes += sum(tensor.nbytes for tensor in tensors.values())
    (place / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": all_bytes}, "weight_map": weight_map})
    )
    return all_bytes


def files_of(config: Mapping[str, Any]) -> Iterator[dict[str, tuple[int, ...]]]:
    """For each file, the shapes of its tensors by name."""
    import torch
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    tied = {"lm_head.weight"} if made.tie_word_embeddings else set()
    shapes: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        if shapes and size + 2 * tensor.numel() > FILE:
            yield shapes
            shapes, size = {}, 0
        shapes[name] = tuple(tensor.shape)
        size += 2 * tensor.numel()
    yield shapes


def packed_bytes(folder: Path) -> int:
    """Bytes of all contents of memory that a written folder has, in all its accelerators."""
    manifests = [json.loads(path.read_text()) for path in folder.rglob("manifest.json")]
    return sum(buffer["bytes"] for one in manifests for buffer in one["buffers"] if buffer["file"])


def run(*arguments: str) -> tuple[float, int]:
    """Run a command of streamgen. Returns its seconds, and the most bytes of memory that it had at a time."""
    start = time.perf_counter()
    process = subprocess.Popen([Path(sys.executable).with_name("streamgen"), *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"streamgen {' '.join(arguments)} ended with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
