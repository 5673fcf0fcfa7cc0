"""Feed-forward networks as graphs of kernels: one kernel a logical operation, matmuls as columns.

A value of F features is padded to a multiple of its own pad in the plan, tokens to the token lanes;
padding holds zeros in memory, and kernels that reduce take the logical extent. Nodes and tensors have the
names of their operations and values, with a number behind those that are taken. A linear becomes

    quantise (shared by all linears that read the value)
      -> C columns, column c owning the rows n with n % C == c, each fed by its own loads
      -> concat, one (1, C) token of neighbouring rows a cycle
      -> add, where there is a bias

Everything else works on the tiles in the order in which its first operand comes (`leading`: of two the one
that comes from a matmul), in tokens as wide as the plan says.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from math import prod
from typing import Any

import numpy as np

from streamgen.buffers.packing import MemoryLayout
from streamgen.config import CompileConfig
from streamgen.errors import GraphError
from streamgen.graph import Graph, Port
from streamgen.graph.logical import Input, LogicalGraph, Operation
from streamgen.graph.plan import Boundary, LinearShape, Plan, Shape, VectorShape
from streamgen.itensor import ITensor, broadcast, without_reuse
from streamgen.kernels.elementwise import BinaryParams, ScalarParams, UnaryParams
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.lower.builder import GraphBuilder
from streamgen.lower.columns import column_tensors, in_tokens_of
from streamgen.manifest import SCALARS
from streamgen.numbers.formats import MX_GROUP, round_f24
from streamgen.operations import Binary, Constant, Linear, Scalar, Unary

__all__ = ["layer_shapes", "lower_network", "tensor_names"]

INPUT_PREFETCH = 1024  # beats at most; an input is asked for as a whole, before weights on its channel
PREFETCH = 512  # beats of the codes of a matmul
THIN_PREFETCH, THIN_BURST = 64, 16  # beats, of streams that hold several tokens a beat
WORD_LANES = 16  # 32-bit words of a beat: tokens of values that lie row after row


def layer_shapes(network: LogicalGraph) -> list[Shape]:
    """What the explorer needs of each linear, quantised, and each elementwise operation, in order."""
    level: dict[str, int] = {value.name: 0 for value in network.inputs}
    by_rows = {value.name for value in network.inputs}  # what comes in the order of memory
    shapes: list[Shape] = []
    for operation in network.operations:
        op, name, path = operation.op, operation.name, operation.where.partition(" (")[0]
        operands = leading([value for value in operation.inputs if value in level], by_rows)
        if not operands:
            continue  # constants, known before anything runs
        at = max(level[value] for value in operands)
        if isinstance(op, Linear):
            n, k = op.extents
            shapes.append(
                LinearShape(
                    name=name,
                    k=k,
                    n=n,
                    level=at,
                    group=op.integers.group,
                    reads=operands[0],
                    path=path,
                    bias=op.bias is not None,
                )
            )
            at += 1
        elif isinstance(op, Unary | Scalar | Binary):
            function = op.kernel if isinstance(op, Binary) else op.function
            shapes.append(
                VectorShape(
                    name=name,
                    features=network.features(name),
                    level=at,
                    operands=tuple(operands),
                    function=function,
                    path=path,
                )
            )
            if operands[0] in by_rows:
                by_rows.add(name)
        level[name] = at
    return shapes


def leading(operands: Sequence[str], by_rows: Collection[str]) -> list[str]:
    """The operands of an elementwise operation, first the one whose order the result has: the first that does
    not come row after row from memory, if there is one. What waits for a matmul leads, as it comes last."""
    return sorted(operands, key=lambda value: value in by_rows)


def lower_network(
    network: LogicalGraph,
    plan: Plan,
    config: CompileConfig,
    rate: float,
    tiles: int,
    boundary: Boundary | None = None,
) -> Graph:
    """The graph of a run of `tiles` token tiles, before forks and converters.

    boundary: given when the network is a part of a larger one and meets the others in memory.
    """
    boundary = boundary or Boundary(tensors=tensor_names(network, config))
    return _Lowering(network, plan, config, rate, tiles, boundary).graph()


def tensor_names(network: LogicalGraph, config: CompileConfig) -> dict[str, str]:
    """Names of the tensors of all values in memory: their own, with a number behind those of host buffers."""
    buffers = {*SCALARS, "table", "status", *(f"weights_{c}" for c in range(config.channels))}
    named = {*(value.name for value in network.inputs), *(o.name for o in network.operations)}
    return {
        name: next(n for n in _numbered(name) if n not in buffers and (n == name or n not in named))
        for name in named
    }


@dataclass(frozen=True)
class _Value:
    """A tensor on its way: its name, its logical features, where it comes out. Constants have no port yet."""

    name: str
    features: int
    port: Port | None = None
    constant: np.ndarray | None = None


class _Lowering:
    def __init__(
        self,
        network: LogicalGraph,
        plan: Plan,
        config: CompileConfig,
        rate: float,
        tiles: int,
        boundary: Boundary,
    ) -> None:
        self._network, self._plan, self._config = network, plan, config
        self._boundary = boundary
        self._tokens = tiles * plan.token_lanes
        self._largest = -(-config.max_tokens // plan.token_lanes) * plan.token_lanes
        self._builder = GraphBuilder(config.name, rate=rate)
        self._values: dict[str, _Value] = {}
        self._by_rows = {value.name for value in network.inputs}
        self._quantised: dict[str, Mapping[str, Port]] = {}
        inputs, outputs = [value.name for value in network.inputs], network.outputs
        self._tensors = {name: boundary.tensors[name] for name in (*inputs, *outputs)}
        self._taken = {f"load_{self._tensors[name]}" for name in inputs}
        self._taken |= {f"store_{self._tensors[name]}" for name in outputs}
        self._nodes = {operation.name: self._free(operation.name) for operation in network.operations}
        self._taken |= set(self._tensors.values())

    def graph(self) -> Graph:
        widths = self._plan.widths
        for value in self._network.inputs:
            largest = self._rows(value, self._largest, widths[value.name])
            beats = MemoryLayout.of(largest).beats(largest.token_count)
            port = self._builder.load(
                self._tensors[value.name],
                self._rows(value, self._tokens, widths[value.name]),
                shape=(self._tokens, value.features),
                channel=self._channel(value.name),
                prefetch=min(-(-beats // 64) * 64, INPUT_PREFETCH),
                largest=largest,
            )
            self._values[value.name] = _Value(value.name, value.features, port)
        for operation in self._network.operations:
            self._values[operation.name] = self._lower(operation)
        for name in self._network.outputs:
            result = self._values[name]
            if result.port is None:
                raise GraphError(f"output {name!r} is a constant; nothing computes it")
            itensor = self._builder.itensor(result.port)
            largest = self._scaled(itensor)
            if name in self._boundary.by_rows:
                itensor, largest = (self._rows(result, t) for t in (self._tokens, self._largest))
            self._builder.store(
                self._tensors[name],
                result.port,
                shape=(self._tokens, result.features),
                channel=self._channel(name),
                itensor=itensor,
                largest=largest,
            )
        return self._builder.build()

    def _lower(self, operation: Operation) -> _Value:
        op, name = operation.op, operation.name
        features = self._network.features(name)
        if isinstance(op, Constant):
            return _Value(name, features, constant=round_f24(op.value)[None])
        if isinstance(op, Linear):
            return _Value(name, features, self._linear(operation, op, self._nodes[name]))
        if not isinstance(op, Unary | Scalar | Binary) or (isinstance(op, Binary) and op.gate):
            raise GraphError(f"operation {name!r} is {op}; no kernel of networks computes it")
        operands = [self._values[value] for value in operation.inputs]
        if all(operand.constant is not None for operand in operands):
            self._port(operands[0], name)
        order = leading([o.name for o in operands if o.constant is None], self._by_rows)
        if order[0] in self._by_rows:
            self._by_rows.add(name)
        if not isinstance(op, Binary):
            port = self._unary(name, op, operands[0])
        else:
            # both operations commute
            operands.sort(key=lambda operand: operand.constant is not None or operand.name != order[0])
            a, b = operands
            port = self._binary(self._nodes[name], op.kernel, a, b, self._plan.widths[name])
        return _Value(name, features, port)

    def _unary(self, operation: str, op: Unary | Scalar, operand: _Value) -> Port:
        node = self._nodes[operation]
        port = self._port(operand, operation)
        itensor = in_tokens_of(self._builder.itensor(port), self._plan.widths[operation])
        lanes, tokens = prod(itensor.element_shape), self._scaled(itensor).token_count
        bounds: dict[str, Any] = {"itensor": itensor}
        if isinstance(op, Scalar):
            params: Any = ScalarParams(function=op.function, lanes=lanes, max_tokens=tokens)
            bounds["constant"] = op.constant
        else:
            params = UnaryParams(function=op.function, lanes=lanes, max_tokens=tokens)
        return self._builder.kernel(node, params, bounds, i=port)["o"]

    def _binary(self, node: str, operation: str, a: _Value, b: _Value, lanes: int) -> Port:
        """Tiles in the order of a, which is no constant."""
        first = self._port(a, node)
        itensor = in_tokens_of(self._builder.itensor(first), lanes)
        bounds: dict[str, ITensor] = {"itensor": itensor}
        if b.constant is not None:
            bounds["b"] = broadcast(itensor)
            second = self._constant(f"{node}_constant", b.constant, bounds["b"], self._plan.io_channel)
        else:
            second = self._port(b, node)
        params = BinaryParams(
            operation=operation,
            lanes=prod(itensor.element_shape),
            max_tokens=self._scaled(itensor).token_count,
        )
        return self._builder.kernel(node, params, bounds, i_a=first, i_b=second)["o"]

    def _linear(self, operation: Operation, op: Linear, node: str) -> Port:
        b, plan = self._builder, self._plan.linears[operation.name]
        weight, (n, k) = op.integers, op.extents
        rows, width = self._extent(operation.name, n), self._extent(operation.inputs[0], k)
        quantised = self._quantise(operation.inputs[0], node)
        grouped = weight.scale is not None
        params = ColumnParams(
            t_lanes=self._plan.token_lanes,
            n_lanes=plan.n_lanes,
            formats=(weight.format,),
            group=weight.group or MX_GROUP,
            scale_bits=self._config.scale_bits if grouped else 0,
            minimum=weight.minimum is not None,
            max_k=width,
            max_n=rows // plan.columns,
            max_t=self._largest,
        )
        bounds = {
            "t": self._tokens,
            "k": width,
            "n": rows // plan.columns,
            "format": weight.format,
            "grouped": grouped,
        }
        wanted = params.inputs(bounds)
        tensors = column_tensors(weight, rows, width)
        outputs = {}
        for c in range(plan.columns):
            name = self._free(f"{node}_column{c}")
            streams = {
                port: self._constant(
                    f"{name}_{port.removeprefix('i_')}",
                    data[c :: plan.columns],
                    wanted[port],
                    plan.channels[c],
                )
                for port, data in tensors.items()
            }
            ports = b.kernel(name, params, bounds, i_x=quantised["o_x"], i_e=quantised["o_e"], **streams)
            outputs[f"i_{c}"] = ports["o_y"]
        out = params.outputs(bounds)["o_y"]
        if plan.columns == 1:
            joined = outputs["i_0"]
        else:
            concat = ConcatParams(
                ways=plan.columns, dtype="f24", element_shape=(1, 1), max_tokens=self._scaled(out).token_count
            )
            joined = b.kernel(self._free(f"{node}_concat"), concat, {"itensor": out}, **outputs)["o"]
        if op.bias is None:
            return joined
        bias = _Value("", n, constant=round_f24(op.bias)[None])
        lanes = self._plan.widths[operation.name]
        return self._binary(self._free(f"{node}_bias"), "add", _Value("", n, joined), bias, lanes)

    def _quantise(self, source: str, reader: str) -> Mapping[str, Port]:
        if source not in self._quantised:
            value = self._values[source]
            width = self._extent(source, value.features)
            params = QuantiseParams(lanes=self._plan.quantisers[source], max_k=width, sums=True)
            bounds = {"t": self._tokens, "k": width, "valid_k": value.features}
            self._quantised[source] = self._builder.kernel(
                self._free(f"quantise_{source}"), params, bounds, i=self._port(value, reader)
            )
        return self._quantised[source]

    def _constant(self, name: str, data: np.ndarray, wanted: ITensor, channel: int) -> Port:
        """Load a constant once, in the order in which `wanted` meets each tile first.

        Streams of whole beats a token (codes) run ahead by the configured depth, thinner ones less.
        """
        name, once = self._free(name), without_reuse(wanted)
        padded = np.zeros(once.shape, data.dtype)
        padded[tuple(slice(extent) for extent in data.shape)] = data
        wide = MemoryLayout.of(once).tokens_per_beat == 1
        return self._builder.load(
            name,
            once,
            shape=data.shape,
            channel=channel,
            data=padded,
            prefetch=(self._config.prefetch_beats or PREFETCH) if wide else THIN_PREFETCH,
            burst=64 if wide else THIN_BURST,
        )

    def _free(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where a node or a tensor has that name already."""
        name = next(n for n in _numbered(wanted) if not self._taken & {n, f"load_{n}"})
        self._taken |= {name, f"load_{name}"}
        return name

    def _port(self, value: _Value, reader: str) -> Port:
        if value.port is None:
            raise GraphError(f"operation {reader!r} works on constants only; compute it before compiling")
        return value.port

    def _channel(self, name: str) -> int:
        """Where an input or output lies."""
        return self._boundary.channels.get(name, self._plan.io_channel)

    def _rows(self, value: Input | _Value, tokens: int, width: int = WORD_LANES) -> ITensor:
        """Row-major tiles of a value that lies so in memory."""
        lanes = self._plan.token_lanes
        trips = (tokens // lanes, lanes, self._extent(value.name, value.features) // width)
        return ITensor((1, width), "f24", trips, (lanes, 1, width), ((0, 1), (2,)))

    def _scaled(self, itensor: ITensor) -> ITensor:
        """The itensor of the largest run: the outermost loop over dimension 0 (token tiles) runs longer."""
        loop = itensor.iter_map[0][0]
        trips = list(itensor.tripcounts)
        trips[loop] = trips[loop] * self._largest // self._tokens
        return ITensor(
            itensor.element_shape, itensor.dtype, tuple(trips), itensor.steps, itensor.iter_map, itensor.base
        )

    def _extent(self, value: str, features: int) -> int:
        return self._plan.extent(value, features)


def _numbered(name: str) -> Iterator[str]:
    """The name, then the name with numbers behind it."""
    return chain([name], (f"{name}_{i}" for i in count(1)))
