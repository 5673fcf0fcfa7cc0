"""The common part of all importers of torch modules: exported programs, their constants, places for messages.

`torch.export.export(..., strict=False)` gives a list of ATen calls. Calls on parameters alone are folded
here. An importer raises `Unsupported` for a call that it cannot import; all of these are reported in one
error, each with its module and its source line.
"""

import operator
import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from streamgen.base.errors import UnsupportedOperationError
from streamgen.base.wording import alternatives
from streamgen.gateware.functions import FUNCTIONS, Function
from streamgen.model.frontend.plain_calls import plain_calls
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import STREAMGEN_FOLDER, TORCH_FOLDER, Place, first_line, is_installed
from streamgen.numbers.quantisation import GroupGrid, require_finite
from streamgen.numbers.weights import FORMATS

aten = torch.ops.aten

SPELLINGS: dict[Any, list[Function]] = {}
"""Functions of one variable by the calls that compute them; one call may compute several, depending on its
arguments."""
for _function in FUNCTIONS.values():
    for _spelling in _function.torch:
        SPELLINGS.setdefault(reduce(getattr, _spelling.split("."), torch.ops), []).append(_function)
UNSET = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}
OF_EXTENTS = {
    aten.empty_like.default,
    aten.full_like.default,
    aten.new_empty.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones_like.default,
    aten.zeros_like.default,
}
"""Calls that read extents alone."""
AS_ANOTHER = {aten.expand_as.default, aten.reshape_as.default, aten.view_as.default}
"""Calls that read of their second argument extents alone."""
DECISION = "what it computes depends on a decision about values, which a graph cannot take"


class Unsupported(Exception):  # noqa: N818 - carries a reason to the collector, never leaves the frontend
    """An operation that an importer does not support, with the reason unless its name is reason enough."""


class Mismatch(Unsupported):
    """A call that does not fit the pattern around it."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def is_ids(value: Any) -> bool:
    """Whether a value is a tensor of integers."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, those left out with their defaults."""
    target: Any = node.target
    schema = target._schema.arguments
    given = {argument.name: argument.default_value for argument in schema}
    given |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return given | node.kwargs


def function_of(node: Node) -> str:
    """The name of the function of one variable that a call of SPELLINGS computes.

    Raises Unsupported, with the first argument that differs, if no function has its arguments.
    """
    target: Any = node.target
    given = arguments(node)
    wrong = [
        [name for name, value in function.arguments.items() if given[name] != value]
        for function in SPELLINGS[target]
    ]
    for function, names in zip(SPELLINGS[target], wrong, strict=True):
        if not names:
            return function.name
    name = wrong[0][0]
    allowed = " and ".join(str(function.arguments[name]) for function in SPELLINGS[target])
    raise Unsupported(f"its {name} is {given[name]}; only {allowed} can be compiled")


class Constants:
    """Parameters, buffers and everything computed from these alone.

    arrays: shared with other programs of the module. changing: calls may change in place what earlier calls
    have made; a constant must then be read when its reader is imported. prefix: of paths, for a wrapper
    around the module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        program: torch.export.ExportedProgram,
        arrays: dict[tuple[Any, ...], tuple[torch.Tensor, np.ndarray]] | None = None,
        *,
        changing: bool = False,
        prefix: str = "",
    ) -> None:
        self.changing = changing
        self.prefix = prefix
        self.module = module
        self.program = program
        self.tensors: dict[Node, Any] = {}  # a call that splits has several
        self.paths: dict[Node, str] = {}  # node of a parameter -> its path in the module
        self.arrays = {} if arrays is None else arrays
        self.own: set[int] = set()  # memory of parameters and buffers
        self.specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}

    def placeholder(self, node: Node) -> bool:
        """Register a parameter or a buffer; False for an input of the module."""
        spec = self.specs[node.name]
        if spec.kind == InputKind.USER_INPUT:
            return False
        store = self.program.state_dict
        tensor = store[spec.target] if spec.target in store else self.program.constants[spec.target]
        self.tensors[node] = tensor.detach()
        self.own.add(tensor.untyped_storage().data_ptr())
        self.paths[node] = spec.target.removeprefix(self.prefix)
        return True

    def fold(self, node: Node) -> None:
        """Compute a call that depends only on parameters."""
        target: Any = node.target
        if target is operator.getitem:
            source, index = node.args
            self.tensors[node] = self.tensors[source][index]
            return
        if target in (aten.dropout.default, aten.feature_dropout.default) and not node.args[2]:
            self.tensors[node] = self.tensors[node.args[0]]
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported()
        attends = target == aten.scaled_dot_product_attention.default and not arguments(node)["dropout_p"]
        if torch.Tag.nondeterministic_seeded in target.tags and not attends:
            raise Unsupported()
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._read)
        own = target._schema.is_mutable and args[0].untyped_storage().data_ptr() in self.own
        if target._schema.is_mutable and target != aten.detach_.default and (own or not self.changing):
            raise Unsupported("it changes a parameter or a buffer in place")
        result = target(*args, **kwargs)
        if not isinstance(result, torch.Tensor | list | tuple):
            raise Unsupported()
        if target in UNSET and isinstance(result, torch.Tensor) and result.is_floating_point():
            result.fill_(torch.nan)  # so that no place is read by chance
        self.tensors[node] = result

    def _read(self, node: Node) -> Any:
        """A constant, or zeros in the place of a value of which only the extents are read."""
        if node in self.tensors:
            return self.tensors[node]
        value = node.meta["val"]
        return torch.zeros((), dtype=value.dtype).expand(value.shape)

    def array(self, node: Node, source: Node) -> np.ndarray:
        """A constant that `node` reads, float32, the same array each time; ValueError if it is not finite."""
        tensor = self.tensors[source]
        if not tensor.is_floating_point():
            raise Unsupported(f"a constant is {tensor.dtype}")
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor._version)
        if key not in self.arrays:
            array = tensor.cpu().to(torch.float32).numpy()
            require_finite(self.paths.get(source, f"a constant of {where(node)} "), array)
            self.arrays[key] = tensor, array  # keep the tensor too, so that its address is not reused
        return self.arrays[key][1]

    def grid(self, weight: Node, transposed: bool = False) -> GroupGrid | None:
        """The attribute `weight_grid` of the module that owns the weight; it is [N, K] even if the weight is
        transposed."""
        path, grid = self._said_of(weight, "weight_grid")
        if grid is None:
            return None
        if not isinstance(grid, GroupGrid):
            raise TypeError(f"weight_grid of {path!r} is {type(grid).__name__}; a GroupGrid is needed")
        tensor = self.tensors[weight]
        meant = torch.from_numpy(grid.dequantise().astype(np.float32)).to(tensor.dtype)
        if not torch.equal(meant.T if transposed else meant, tensor.cpu()):
            raise ValueError(
                f"weight_grid of {path!r} does not match its weight any more; delete the attribute to "
                "have the weight quantised again"
            )
        return grid

    def asked(self, weight: Node) -> str | None:
        """The attribute `weight_format` of the module that owns the weight."""
        path, form = self._said_of(weight, "weight_format")
        if form not in (None, *FORMATS):
            raise ValueError(f"weight_format of {path!r} is {form!r}; it must be {alternatives(FORMATS)}")
        form_asked: str | None = form
        return form_asked

    def _said_of(self, weight: Node, attribute: str) -> tuple[str, Any]:
        """The path of the module that owns a weight, and an attribute of that module."""
        path, _, name = self.paths.get(weight, "").rpartition(".")
        return path, getattr(self.module.get_submodule(path), attribute, None) if name == "weight" else None


def export_program(
    module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """The program, without decomposition; UnsupportedOperationError if torch cannot trace the module."""
    try:
        # Under no_grad, a forward under no_grad changes nothing and is not wrapped.
        with quiet(), plain_calls(), torch.no_grad():
            return torch.export.export(module, inputs, dict(keywords or {}), strict=False)
    except Exception as error:  # torch.export documents no set of exceptions
        said, full = _gist(error)
        raise UnsupportedOperationError(f"the module cannot be traced: {said}", [full]) from error


def _gist(error: Exception) -> tuple[str, str]:
    """The first line of an error of torch, once with the last line of the user's module in the traceback, and
    once with the last line outside torch."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((TORCH_FOLDER, STREAMGEN_FOLDER))]
    own = [frame for frame in outside if not is_installed(frame.filename)]
    first = first_line(error)
    if "data-dependent" in first:
        first = DECISION
    return tuple(  # type: ignore[return-value]
        f"{first} ({stack[-1].filename}:{stack[-1].lineno})" if stack else first for stack in (own, outside)
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within a block: tensors of a trace are small, and threads that wait for each other take
    three times as long as the work itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Switch off torch's fused blocks for inference, which would be one opaque call, and its look at the
    values of a mask, which only tells whether a faster call would do."""
    layers: Any = torch.nn.modules.transformer
    before = torch.backends.mha.get_fastpath_enabled(), layers._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before[0])
        layers._detect_is_causal_mask = before[1]


def is_constant_call(node: Node, constants: Collection[Node]) -> bool:
    """Whether a call reads constants alone, or of values nothing but their extents."""
    if node.op != "call_function":
        return False
    if node.target in AS_ANOTHER:
        return node.args[0] in constants
    return node.target in OF_EXTENTS or all(source in constants for source in node.all_input_nodes)


def shape(node: Node) -> torch.Size:
    """The shape of the tensor that a node computes."""
    return node.meta["val"].shape


def module_path(node: Node) -> tuple[str, str]:
    """The path and the class of the module that makes a call."""
    stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
    path, kind = stack[-1]
    return path, str(kind).rpartition(".")[2]


def where(node: Node, wrapper: str = "") -> Place:
    """The place of a call; `wrapper`, a module around the user's module, is left out."""
    path, kind = module_path(node)
    if wrapper:
        path = f"{path}.".removeprefix(f"{wrapper}.")[:-1]
        kind = kind if path else ""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [line for line in lines if not line[0].startswith(TORCH_FOLDER)] or lines
    return Place(path=path, kind=kind, lines=tuple(own))
