"""Modules that are refused before they are traced, because torch's messages would name its own classes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from streamgen.base.errors import UnsupportedOperationError

QUANTISATION = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic",
    "torch.ao.nn.qat",
    "torch.ao.nn.sparse.quantized",
    "torch.ao.quantization",
    "torchao.quantization",
)
PLAIN = (bool, int, float, str, type(None))


def require_readable(module: torch.nn.Module) -> None:
    """Raise UnsupportedOperationError for TorchScript, an adapter that is not merged, layers of torch's own
    quantisation, and weights that are not in CPU memory."""
    if _is_of(module, "peft"):
        raise UnsupportedOperationError(
            f"{type(module).__name__} is a model with a PEFT adapter that is not merged into its weights; "
            "call model.merge_and_unload() first"
        )
    for path, part in module.named_modules():
        place = f"{path} ({type(part).__name__})" if path else f"the module ({type(part).__name__})"
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedOperationError(
                f"{place} is TorchScript, which cannot be read; give the module from which torch.jit made it"
            )
        if _is_of(part, *QUANTISATION):
            raise UnsupportedOperationError(
                f"{place} is a layer of torch's own quantisation; give the module with float layers, "
                "whose weights streamgen quantises itself"
            )
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if tensor.is_meta:
            raise UnsupportedOperationError(
                f"{name} is on the meta device, so it has no values; load the weights first. `estimate` "
                "accepts the module without values"
            )
        if tensor.device.type != "cpu":
            raise UnsupportedOperationError(
                f"{name} is on {tensor.device}; weights are read from CPU memory: give module.cpu()"
            )


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Undo every change that a run makes to the module, because new tensors may have no contents."""
    before = [
        (part, dict(vars(part)), dict(part._buffers), dict(part._parameters)) for part in model.modules()
    ]
    try:
        yield
    finally:
        for part, attributes, buffers, parameters in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
            part._parameters.update(parameters)


@contextmanager
def kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Undo every change that a run makes to the contents of buffers."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, contents in before:
            buffer.copy_(contents)


def changed_state(module: torch.nn.Module, call: Callable[[], object]) -> str:
    """The first change that a call makes in the module, such as `attribute steps of the module (Counter)`;
    empty if there is none."""
    before = _state(module)
    call()
    after = _state(module)
    for key, value in after.items():
        known = before.get(key)
        same = (
            torch.equal(known, value)
            if isinstance(value, torch.Tensor) and known is not None
            else known == value
        )
        if not same:
            path, name = key
            kind = type(module.get_submodule(path)).__name__
            what = "buffer" if isinstance(value, torch.Tensor) else "attribute"
            return f"{what} {name} of {path or 'the module'} ({kind})"
    return ""


def _state(module: torch.nn.Module) -> dict[tuple[str, str], object]:
    """Buffers and plain attributes of all inner modules, by path and name."""
    state: dict[tuple[str, str], object] = {}
    for path, part in module.named_modules():
        state |= {(path, name): value for name, value in vars(part).items() if isinstance(value, PLAIN)}
        state |= {(path, n): b.detach().clone() for n, b in part.named_buffers(recurse=False)}
    return state


def _is_of(module: torch.nn.Module, *packages: str) -> bool:
    """Whether a class of the module comes from one of these packages."""
    homes = [kind.__module__ for kind in type(module).__mro__]
    return any(f"{home}.".startswith(f"{package}.") for home in homes for package in packages)
