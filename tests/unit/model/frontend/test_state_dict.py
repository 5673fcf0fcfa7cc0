"""Trained tensors of a module from a file."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.state_dict import load_state


def _module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    "nest",
    [
        lambda state: state,
        lambda state: {"model": state, "optimizer": {"lr": 0.1}, "step": 3},
        lambda state: {"epoch": 3, "state_dict": {f"module.{name}": t for name, t in state.items()}},
        lambda state: {"model_state_dict": {f"_orig_mod.{name}": t for name, t in state.items()}},
        lambda state: {f"_orig_mod.module.{name}": t for name, t in state.items()},
    ],
)
def test_files_of_training_loops(nest: Any, tmp_path: Path) -> None:
    trained, module = _module(1), _module(2)
    torch.save(nest(trained.state_dict()), tmp_path / "trained.pt")
    load_state(module, tmp_path / "trained.pt")
    assert _same(trained, module)


def test_safetensors(tmp_path: Path) -> None:
    trained, module = _module(1), _module(2)
    save_file(trained.state_dict(), tmp_path / "trained.safetensors")
    load_state(module, tmp_path / "trained.safetensors")
    assert _same(trained, module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("0.bias"), "the file lacks 0.bias"),
        (lambda state: state.update(more=torch.zeros(1)), "the module lacks more"),
        (
            lambda state: state.update({"2.weight": torch.zeros(2, 5)}),
            "2.weight (file [2, 5], module [2, 4])",
        ),
        (lambda state: state.update(more=3), "more is no tensor"),
        (lambda state: state.clear(), "is empty"),
    ],
)
def test_another_state(change: Any, message: str, tmp_path: Path) -> None:
    state, module = dict(_module(1).state_dict()), _module(2)
    change(state)
    torch.save(state, tmp_path / "trained.pt")
    with pytest.raises(CheckpointError) as caught:
        load_state(module, tmp_path / "trained.pt")
    assert message in str(caught.value)
    assert _same(module, _module(2))


class _Runs:
    """An object whose reading runs code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit",)


@pytest.mark.parametrize("content", [pickle.dumps(_Runs()), b"", b"some text"])
def test_files_that_are_no_tensors(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trained.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as tensors alone"):
        load_state(_module(1), tmp_path / "trained.pt")
    with pytest.raises(CheckpointError, match="there is no file"):
        load_state(_module(1), tmp_path / "missing.pt")
