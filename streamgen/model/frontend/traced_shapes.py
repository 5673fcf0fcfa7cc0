"""Shapes by tracing: modules without values, on torch's meta device or made by transformers from a config.

Every parameter becomes a view of one number, which takes no memory, and stays such a view down to the graph
of kernels (`numbers.quantisation.is_uniform`). Buffers keep their values, because masks and rotary
frequencies decide what is computed.

If layers are alike, two periods are traced and then repeated; their modules, shapes and numbers show the
period. If the second period differs from the first in the trace, all layers are traced.
"""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from streamgen.base.errors import CheckpointError, UnsupportedOperationError
from streamgen.base.extras import needed
from streamgen.model.frontend.any_module import import_any
from streamgen.model.frontend.config_fields import unknown_fields
from streamgen.model.frontend.decoder import import_decoder, traced_context
from streamgen.model.frontend.plain_config import STAND_IN
from streamgen.model.frontend.pretrained import attention_of
from streamgen.model.frontend.pretrained_modules import class_of
from streamgen.model.frontend.problems import refuse
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import first_line
from streamgen.model.frontend.safetensors_file import read_config
from streamgen.model.frontend.transformers_modules import IDS, generates, is_of_transformers
from streamgen.model.graph.logical import LogicalGraph, Repeat


def shapes_of_module(
    model: Any, example_inputs: Any = None, longest: int = 1, context: int | None = None
) -> LogicalGraph:
    """The graph of a module, also on the meta device. Arguments and errors are those of `import_any`."""
    if isinstance(model, torch.nn.Module) and _is_without_values(model):
        config = getattr(model, "config", None)
        if is_of_transformers(model) and not generates(model):
            model = _model(config, type(model))
        elif hasattr(config, "get_text_config"):
            return _graph(_model(config), context, type(model).__name__)
        else:
            model = _with_stand_ins(copy.deepcopy(model))
    return import_any(model, example_inputs, longest, context)[0]


def _is_without_values(module: torch.nn.Module) -> bool:
    """Whether some tensor of a module is on the meta device."""
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _with_stand_ins(module: torch.nn.Module) -> torch.nn.Module:
    """Replace the parameters on the meta device by views of one number, in place; return the module.

    Raises ValueError for a buffer on the meta device, whose values are unknown.
    """
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            raise ValueError(
                f"buffer {name} is on the meta device, so what the module computes is not known; build it "
                "with its buffers in memory, as accelerate.init_empty_weights(include_buffers=False) does"
            )
    stand_ins: dict[int, torch.nn.Parameter] = {}  # tied parameters stay tied
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in stand_ins:
                stand_in = torch.full((), STAND_IN).expand(parameter.shape)
                stand_ins[id(parameter)] = torch.nn.Parameter(stand_in, requires_grad=False)
            part._parameters[name] = stand_ins[id(parameter)]
    return module.eval()


def shapes_of_config(folder: Path, context: int | None = None, longest: int = 1) -> LogicalGraph:
    """The model that the config.json of a folder describes: of the class that it names if that generates no
    texts, else a decoder.

    Raises CheckpointError if transformers does not know the config, if a field is unknown, or if it is not a
    causal language model; MissingToolError says how to install transformers.
    """
    with needed("a config.json without weights"):
        from transformers import AutoConfig
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers documents no set of exceptions
        raise CheckpointError(f"{folder}/config.json: transformers cannot read it: {error}") from error
    kind = class_of(folder)
    kind = kind if kind is not None and kind.main_input_name == IDS else None  # others need an example
    model = _model(config, kind)
    refuse(folder, unknown_fields(type(config), read_config(folder)))
    if kind is not None:
        return import_any(model, None, longest, context)[0]
    return _graph(model, context, folder.resolve().name)


def _graph(model: torch.nn.Module, context: int | None, name: str) -> LogicalGraph:
    """The decoder of a model of transformers without weights, for texts of up to `context` positions."""
    context = traced_context(model, context)
    if (layers := _layers(model)) is not None:
        owner, path, count = layers
        if not count:
            raise CheckpointError(f"{name}: num_hidden_layers is 0; a model has at least one layer")
        every = getattr(owner, path)
        period = _period([_form(layer) for layer in every])
        if 2 * period < count:
            setattr(owner, path, every[: 2 * period])
            repeated = _repeated(_tried(model, context, name), period, count)
            if repeated is not None:
                return repeated
            setattr(owner, path, every)
    return import_decoder(model, context=context, name=name)


def _tried(model: torch.nn.Module, context: int | None, name: str) -> LogicalGraph | None:
    """The graph of a model with fewer layers than its config says; None if it does not run."""
    try:
        return import_decoder(model, context=context, name=name)
    except UnsupportedOperationError:
        return None


def _layers(model: torch.nn.Module) -> tuple[torch.nn.Module, str, int] | None:
    """The list that holds all layers of the decoder: its owner, its name in the owner, and the number of
    layers."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    for owner in model.modules():
        for name, part in owner.named_children():
            if isinstance(part, torch.nn.ModuleList) and len(part) == count:
                return owner, name, len(part)
    return None


def _form(layer: torch.nn.Module) -> list[Any]:
    """Everything that distinguishes one layer from another: classes, shapes, numbers and texts, except its
    own index."""
    return [
        (
            path,
            type(part),
            [(n, tuple(p.shape)) for n, p in part.named_parameters(recurse=False)],
            _said(part),
        )
        for path, part in layer.named_modules()
    ]


def _said(module: torch.nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None)
        and not re.search(r"layer_?(idx|id|index|number)", name)
    }


def _period(forms: list[Any]) -> int:
    """The number of layers after which the forms repeat."""
    return next(
        p for p in range(1, len(forms) + 1) if all(a == b for a, b in zip(forms, forms[p:], strict=False))
    )


def _model(config: Any, kind: Any = None) -> torch.nn.Module:
    """The model without weights. kind: its class, if it is no language model."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config)
    try:
        with quiet(), init_empty_weights(include_buffers=False):
            config._attn_implementation = attention_of(config, kind)
            if kind is not None:
                return _with_stand_ins(kind(config))
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # transformers documents no set of exceptions
        wanted = "causal language model" if kind is None else kind.__name__
        raise CheckpointError(
            f"config.json: transformers makes no {wanted} of {config.model_type!r}\n  it says: "
            f"{first_line(error)}"
        ) from error
    return _with_stand_ins(model)


def _repeated(graph: LogicalGraph | None, period: int, count: int) -> LogicalGraph | None:
    """The graph with `count` layers; None if its layers do not repeat after a period."""
    if graph is None:
        return None
    repeats = [o for o in graph.operations if o.op.layers]
    if len(repeats) != 1:
        return None
    layers = repeats[0].op.layers
    if len(layers) != 2 * period:
        return None
    if [layer.form() for layer in layers[:period]] != [layer.form() for layer in layers[period:]]:
        return None
    more = Repeat(tuple(layers[index % period] for index in range(count)))
    operations = (replace(o, op=more) if o is repeats[0] else o for o in graph.operations)
    return replace(graph, operations=tuple(operations))
