"""A trained state of a module from a file: what `torch.save(module.state_dict(), file)` or a checkpoint of a
training loop wrote, or safetensors.

The file is read as data (`weights_only`); a file that needs code to be read is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.refusals import first_line

NESTS = ("state_dict", "model_state_dict", "model", "module", "net")  # names that training loops use
PREFIXES = ("_orig_mod.", "module.", "model.")  # of torch.compile, of parallel training, of wrappers
SHOWN = 5  # names in an error


def load_state(module: torch.nn.Module, path: str | Path) -> None:
    """Load the tensors of a file into a module, in place. Every tensor of the module must be in the file, and
    every tensor of the file in the module, with the same shape.

    Raises CheckpointError that names the tensors for any other file.
    """
    path = Path(path)
    state = _state(path)
    own = module.state_dict()
    while own.keys().isdisjoint(state) and (prefix := _prefix(state)):
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    problems = [
        *_named("the file lacks", own.keys() - state.keys()),
        *_named("the module lacks", state.keys() - own.keys()),
        *_named(
            "the shapes differ of",
            (
                f"{name} (file {list(state[name].shape)}, module {list(own[name].shape)})"
                for name in own.keys() & state.keys()
                if state[name].shape != own[name].shape
            ),
        ),
    ]
    if problems:
        raise CheckpointError(f"{path} is not a state of {type(module).__name__}: {'; '.join(problems)}")
    module.load_state_dict(state)


def _state(path: Path) -> Mapping[str, torch.Tensor]:
    """The tensors of a file by name."""
    try:
        content: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except Exception as error:  # torch documents no set of exceptions
        raise CheckpointError(
            f"{path} cannot be read as tensors alone: {first_line(error)}\n"
            "Write it with torch.save(module.state_dict(), file), or with safetensors."
        ) from error
    while isinstance(content, Mapping) and (nest := next((n for n in NESTS if _is_nest(content, n)), None)):
        content = content[nest]
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; tensors by name are needed")
    others = [name for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others or not content:
        raise CheckpointError(
            f"{path} holds no state of a module: {', '.join(map(str, others[:SHOWN])) or 'it'} "
            f"{'are no tensors' if len(others) > 1 else 'is no tensor' if others else 'is empty'}"
        )
    return content


def _prefix(state: Mapping[str, torch.Tensor]) -> str:
    """The prefix of all names, of those that are known; empty if there is none."""
    return next((p for p in PREFIXES if all(name.startswith(p) for name in state)), "")


def _is_nest(content: Mapping[str, Any], name: str) -> bool:
    return isinstance(content.get(name), Mapping)


def _named(what: str, names: Any) -> list[str]:
    """A problem with the first names, if there are any."""
    ordered = sorted(names)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return [f"{what} {', '.join(ordered[:SHOWN])}{more}"] if ordered else []
