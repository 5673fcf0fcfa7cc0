"""The calls of an exported decoder in three kinds, and the small matches that all regions share.

constants   made of parameters alone, folded
tables      made of positions and constants (masks, cosines, sines): run for any positions asked for
data        made of token ids or of the cache: what the regions of a decoder are found in

A match that fails raises `Mismatch` with the call that is in the way. Dropout counts as a rename here: who
imports reports it first when it is in training mode.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.frontend.origins import MOVES, RENAMES, Origins, renamed
from streamgen.frontend.trace import Constants, Mismatch, Unsupported, aten, same_tokens, shape
from streamgen.numbers.quantisation import GroupGrid
from streamgen.operations import Linear, Norm

__all__ = ["Values"]

VIEWS = {
    aten.flatten.using_ints,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.view.default,
}


class Values:
    """Nodes of an exported program whose inputs are ids, positions and the cache."""

    def __init__(self, module: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
        self.nodes: list[Node] = list(program.graph.nodes)
        self.constants = Constants(module, program)
        self.inputs: list[Node] = []
        self.order = {node: index for index, node in enumerate(self.nodes)}
        self.tables: list[Node] = []  # in order
        self.positional: set[Node] = set()
        self.data: set[Node] = set()
        self.unfolded: dict[
            Node, str | None
        ] = {}  # constants not known, with the reason or None: their source
        self.computed: dict[tuple[int, ...], dict[Node, Any]] = {}
        self.behind: dict[Node, int] = {}  # bit i: the value is made of node i
        for node in self.nodes:
            if node.op == "placeholder":
                if not self.constants.placeholder(node):
                    self.inputs.append(node)
            elif node.op == "call_function":
                self._sort(node)
            self.behind[node] = 1 << self.order[node]
            for source in node.all_input_nodes:
                self.behind[node] |= self.behind[source]
        self.results: list[Node] = list(self.nodes[-1].args[0])
        self.live = [node for node in self.nodes if self.behind[self.nodes[-1]] >> self.order[node] & 1]
        self.written: list[Node] = []  # calls that change what another call reads
        self.targets = {node: self._target(node) for node in self.nodes if node.op == "call_function"}

    def _sort(self, node: Node) -> None:
        if len(self.inputs) < 2:
            raise AssertionError("placeholders come first: ids, positions")
        ids, positions, *cache = self.inputs
        sources = set(node.all_input_nodes)
        if sources & (self.data | {ids, *cache}):
            self.data.add(node)
        elif sources & (self.positional | {positions}):
            self.tables.append(node)
            self.positional.add(node)
        elif not sources & self.unfolded.keys():
            try:
                self.constants.fold(node)
            except Unsupported as reason:
                self.unfolded[node] = str(reason)
        else:
            self.unfolded[node] = None

    def _target(self, node: Node) -> Any:
        """What a call computes; for one in place the call that makes a value, if nothing sees the change."""
        target: Any = node.target
        if (
            not isinstance(target, torch._ops.OpOverload)
            or not target._schema.is_mutable
            or target in RENAMES
        ):
            return target
        changed = _storage(node.args[0])
        if node in self.positional and changed in self.positional:
            return target  # tables are run in order, changes and all
        if changed.op == "placeholder" or any(
            _storage(source) is changed
            for other in self.live
            if self.order[other] > self.order[node]
            for source in other.all_input_nodes
            if source is not node
        ):
            self.written.append(node)
            return target
        packet = getattr(aten, target._schema.name.partition("::")[2].removesuffix("_"), None)
        return getattr(packet, target._overloadname, target)

    def target(self, node: Node) -> Any:
        """What a node calls; calls in place count as what they compute. None for inputs."""
        return self.targets.get(node)

    def made_of(self, node: Node, source: Node) -> bool:
        """Whether `source` takes part in a node's value."""
        return bool(self.behind[node] >> self.order[source] & 1)

    def constant(self, value: Any) -> torch.Tensor | None:
        """The tensor of a constant, a number's too; None for what is computed at run time."""
        if isinstance(value, Node):
            return self.constants.tensors.get(value)
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, int | float) else None

    def scalar(self, value: Any) -> float | None:
        """The number that a constant of one element is."""
        tensor = self.constant(value)
        return float(tensor) if tensor is not None and tensor.numel() == 1 else None

    def table(self, node: Node, positions: torch.Tensor) -> torch.Tensor:
        """The tensor of a constant or a table, the table's for these positions [T]."""
        if node in self.constants.tensors:
            return self.constants.tensors[node]
        key = tuple(positions.tolist())
        if key not in self.computed:
            known: dict[Node, Any] = {self.inputs[1]: positions[None]}

            def value(source: Node) -> Any:
                found = known.get(source)
                if found is None and source in self.constants.tensors:
                    return self.constants.tensors[source]
                return found

            for table in self.tables:
                args, kwargs = torch.fx.node.map_arg((table.args, table.kwargs), value)
                function: Any = table.target
                known[table] = function(*args, **kwargs)
            self.computed[key] = known
        return self.computed[key][node]

    def is_table(self, value: Any) -> bool:
        """Whether a value is a tensor made of positions and constants."""
        return isinstance(value, Node) and (value in self.constants.tensors or value in self.positional)

    def rows(self, node: Node) -> Node:
        """What a value of rows is before renames and views that keep the last dimension."""
        while True:
            node = renamed(node)
            if node.op != "call_function" or node.target not in VIEWS:
                return node
            source: Any = node.args[0]
            if not same_tokens(shape(source), shape(node)):
                return node
            node = source

    def operands(self, node: Node, target: Any) -> tuple[Any, Any] | None:
        """The two operands of a product or a sum; None when it is not one."""
        if self.target(node) != target or node.kwargs.get("alpha", 1) != 1:
            return None
        return node.args[0], node.args[1]

    def data_and_other(self, node: Node, target: Any) -> tuple[Node, Any] | None:
        """Operands of a call on a data value and one that is not."""
        pair = self.operands(node, target)
        if pair is None:
            return None
        data = [operand for operand in pair if operand in self.data]
        other = [operand for operand in pair if operand not in self.data]
        return (data[0], other[0]) if len(data) == 1 else None

    def linear(self, node: Node) -> tuple[Linear, Node]:
        """The Linear that makes rows, or takes part of a greater one's, and the rows it reads."""
        found = self.rows(node)
        if self.target(found) == aten.linear.default:
            return self.taken(found, None)
        origins = Origins()
        indices = origins.of(node)
        parts = origins.split(indices)
        if len(parts) != 1 or self.target(parts[0][0]) != aten.linear.default:
            raise Mismatch(parts[0][0], "the output of a Linear is needed")
        source, _, positions = parts[0]
        features = shape(source)[-1]
        taken = positions.reshape(-1, indices.shape[-1])
        rows = taken[0] % features
        tokens = torch.arange(len(taken))[:, None]
        if (indices < 0).any() or not torch.equal(taken, tokens * features + rows):
            raise Mismatch(source, "its features are mixed from token to token")
        return self.taken(source, rows)

    def taken(self, node: Node, rows: torch.Tensor | None) -> tuple[Linear, Node]:
        """A Linear with some rows of the weight (None: all, as they are), and what it reads."""
        x, weight_node, bias_node = (*node.args, None)[:3]
        if x not in self.data or any(self.constant(p) is None for p in (weight_node, bias_node) if p):
            raise Mismatch(node, "its weight or bias is computed at run time")
        weight = self.constants.array(node, weight_node)
        bias = None if bias_node is None else self.constants.array(node, bias_node)
        grid = self.constants.grid(weight_node)
        if rows is not None and not torch.equal(rows, torch.arange(len(weight))):
            picked = rows.numpy()
            weight, bias = weight[picked], None if bias is None else bias[picked]
            grid = grid and GroupGrid(grid.codes[picked], grid.scale[picked], grid.minimum[picked])
        return Linear(weight, bias, grid), x

    def norm(self, node: Node) -> tuple[Norm, Node]:
        """An RMSNorm, as one call or as its equation, and the rows it reads."""
        node = self.rows(node)
        if self.target(node) == aten.rms_norm.default:
            x, extents, weight, epsilon = (*node.args, None, None)[:4]
            if list(extents) != [shape(node)[-1]]:
                raise Mismatch(node, f"it normalises over {extents}, the last dimension is needed")
            if epsilon is None:
                epsilon = torch.finfo(node.meta["val"].dtype).eps
            array = np.ones(shape(node)[-1], np.float32) if weight is None else self._vector(node, weight)
            return Norm("rms", array, float(epsilon)), self.rows(x)
        weighted = self.data_and_other(node, aten.mul.Tensor)
        if weighted is None:
            raise Mismatch(node, "an RMSNorm with a weight is needed here")
        y = self.rows(weighted[0])
        epsilon, x = self._normalised(y)
        return Norm("rms", self._vector(node, weighted[1]), epsilon), x

    def _normalised(self, node: Node) -> tuple[float, Node]:
        """epsilon and x of x * rsqrt(mean(x ** 2) + epsilon), or x / sqrt(...)."""
        needed = "an RMSNorm is needed here: x * rsqrt(mean(x ** 2) + epsilon) * weight"
        pair = self.operands(node, aten.mul.Tensor)
        root = aten.rsqrt.default
        if pair is None:
            pair, root = self.operands(node, aten.div.Tensor), aten.sqrt.default
        if pair is None or any(operand not in self.data for operand in pair):
            raise Mismatch(node, needed)
        x, factor = pair
        if root == aten.rsqrt.default and self.target(renamed(x)) == root:
            x, factor = factor, x
        factor = renamed(factor)
        if self.target(factor) != root:
            raise Mismatch(factor, needed)
        added = self.data_and_other(renamed(factor.args[0]), aten.add.Tensor)
        epsilon = self.scalar(added[1]) if added else None
        if added is None or epsilon is None:
            raise Mismatch(factor, needed)
        mean = renamed(added[0])
        x = self.rows(x)
        dims = [d % len(shape(x)) for d in mean.args[1]] if self.target(mean) == aten.mean.dim else []
        if dims != [len(shape(x)) - 1] or not (*mean.args, False)[2]:
            raise Mismatch(mean, needed)
        if self._squared(renamed(mean.args[0])) is not x:
            raise Mismatch(mean, "the mean is not that of the squares of what it normalises")
        return epsilon, x

    def _squared(self, node: Node) -> Node | None:
        square: Any = None
        pair = self.operands(node, aten.mul.Tensor)
        if pair is not None and pair[0] is pair[1]:
            square = pair[0]
        elif self.target(node) == aten.square.default or (
            self.target(node) == aten.pow.Tensor_Scalar and node.args[1] == 2
        ):
            square = node.args[0]
        return None if square is None else self.rows(square)

    def _vector(self, node: Node, weight: Any) -> np.ndarray:
        """The weight [features] of a norm."""
        if not isinstance(weight, Node) or self.constant(weight) is None:
            raise Mismatch(node, "its weight must be a parameter of shape [features]")
        array = self.constants.array(node, weight)
        if array.size != shape(node)[-1]:
            raise Mismatch(node, f"its weight has shape {list(array.shape)}; [features] is needed")
        return array.reshape(-1)


def _storage(value: Any) -> Node:
    """The node whose memory a value may share."""
    while value.op == "call_function" and value.target in RENAMES | MOVES:
        value = value.args[0]
        if isinstance(value, Sequence):
            value = value[0]
    return value
