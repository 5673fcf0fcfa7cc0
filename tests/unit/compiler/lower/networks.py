"""Small networks for the tests of the lowering, and what they compute without tiles, columns or padding.

`exact` evaluates a logical graph with the rules of the numbers only: rows are quantised as a whole, matmuls
are integer products of whole matrices, elementwise operations round once. The tables of the functions are
those of `streamgen.gateware.arith`, which has its own tests.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np

from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore import explore
from streamgen.compiler.lower import finish
from streamgen.compiler.schedule import Derivation, HardwarePlan, layer_shapes, schedule
from streamgen.gateware.arith import F24
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model import golden
from streamgen.model.graph import Graph, Program
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Shape
from streamgen.model.operations import Binary, Constant, Linear, Scalar, Unary
from streamgen.numbers.formats import encode, round_f24
from streamgen.numbers.quantisation import QuantisedWeight
from streamgen.platform.boards import Channel

__all__ = [
    "Compiled",
    "bits",
    "exact",
    "linear",
    "network",
    "random_inputs",
    "random_network",
    "run",
]

CHANNEL = Channel(0.6927, 100)
SIZES = (1, 5, 7, 13, 31, 32, 33, 40, 64, 65, 96)


def linear(rng: np.random.Generator, n: int, k: int, bias: bool = False) -> Linear:
    """Weights [n, k] whose rows and groups differ in size."""
    spread = np.exp2(rng.integers(-3, 4, (n, -(-k // 32)))).repeat(32, axis=1)[:, :k]
    weight = (rng.normal(size=(n, k)) * spread / np.sqrt(k)).astype(np.float32)
    return Linear(weight, rng.normal(size=n).astype(np.float32) if bias else None)


def network(
    inputs: Mapping[str, int], operations: Mapping[str, tuple[Operator, *tuple[str, ...]]], *outputs: str
) -> LogicalGraph:
    """network({"x": 7}, {"y": (Unary("relu"), "x")}, "y")"""
    listed = tuple(Operation(name, op, tuple(operands)) for name, (op, *operands) in operations.items())
    return LogicalGraph(tuple(Input(*item) for item in inputs.items()), listed, outputs)


def random_network(rng: np.random.Generator) -> LogicalGraph:
    """One or two inputs and two to seven operations of any kind; all that nothing reads are outputs."""
    inputs = {f"x{i}": int(rng.choice(SIZES)) for i in range(rng.integers(1, 3))}
    features = dict(inputs)
    operations: dict[str, tuple[Operator, *tuple[str, ...]]] = {}
    wanted = int(rng.integers(2, 8))
    while len(operations) < wanted:
        name = f"v{len(operations)}"
        a = str(rng.choice([name for name in features if not name.startswith("c")]))
        kind = rng.choice(["linear", "linear", "unary", "binary", "constant"])
        if kind == "linear":
            same = [features[b] for b in features]  # so that residual sums are found
            n = int(rng.choice(same if rng.random() < 0.6 else SIZES))
            operations[name] = (linear(rng, n, features[a], bool(rng.integers(2))), a)
        elif kind == "unary":
            operations[name] = (Unary(str(rng.choice(["silu", "relu", "sigmoid"]))), a)
        else:
            operation = Binary(str(rng.choice(["add", "mul"])))
            b = str(rng.choice([name for name in features if features[name] == features[a]]))
            if kind == "constant":
                b = f"c{len(operations)}"
                operations[b] = (Constant(rng.normal(size=features[a]).astype(np.float32)),)
                features[b] = features[a]
                name = f"v{len(operations)}"
            operations[name] = (operation, *((a, b) if rng.integers(2) else (b, a)))
        op, *operands = operations[name]
        features[name] = op.shapes(*(Shape(features[o]) for o in operands))[0].features
    read = {operand for _, *operands in operations.values() for operand in operands}
    outputs = [n for n in operations if n not in read or (not n.startswith("c") and rng.random() < 0.2)]
    return network({n: f for n, f in inputs.items() if n in read}, operations, *outputs)


def random_inputs(graph: LogicalGraph, tokens: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """float32 arrays of f24 values [tokens, features]; some rows are zero, tiny, huge or of wide spread."""
    arrays = {}
    for value in graph.inputs:
        x = rng.normal(size=(tokens, value.features))
        scale = rng.choice([0, 2.0**-100, 1, 1, 1, 1, 2.0**30, 2.0**127], tokens)
        spread = np.exp2(rng.integers(-30, 1, x.shape) * rng.integers(0, 2, (tokens, 1)))
        arrays[value.name] = round_f24(np.clip(x * spread * scale[:, None], -(2.0**127), 2.0**127))
    return arrays


class Compiled:
    """A network through quantise, explore, lower and finish.

    factors: (columns, n_lanes) of each linear, fixed.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        config: CompileConfig,
        factors: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        if factors is not None:
            fixed = {name: {"columns": c, "n_lanes": n} for name, (c, n) in factors.items()}
            config = replace(config, fixed=fixed, multipliers=1 << 20)
        self.graph, self.config = graph, config
        self.network = graph.quantised(config.numbers(False))
        self.weights = {o.name: o.op.integers for o in self.network.operations if isinstance(o.op, Linear)}
        self.plan = explore(
            layer_shapes(schedule(self.network, None)), replace(budget_of(config), memory=CHANNEL)
        )
        self.lanes = self.plan.token_lanes
        hardware = HardwarePlan(max_tokens=config.size("max_tokens"), context=0, lanes=8, own=self.plan)
        self.derived = Derivation(self.network, hardware, CHANNEL)
        self.program: Program
        self.cycles: list[int]
        self.program, self.cycles = finish(
            lambda tiles, _: self.build(tiles),
            self.lanes,
            -(-config.size("max_tokens") // self.lanes),
            config.sizing,
        )

        self.at = cache(self.program.at)

    def build(self, tiles: int) -> Graph:
        """The unfinished graph of a run."""
        return self.derived.graph(tiles * self.lanes, 0)


def run(compiled: Compiled, arrays: Mapping[str, np.ndarray], tokens: int) -> dict[str, np.ndarray]:
    """The golden outputs [tokens, features] of the first `tokens` tokens, in one run of as few tiles."""
    graph = compiled.at(-(-tokens // compiled.lanes))
    inputs = {}
    for tensor in graph.tensors:
        if tensor.role == "input":
            part = arrays[tensor.name][:tokens]
            inputs[tensor.name] = np.zeros(graph.tensor_itensor(tensor).shape, np.float32)
            inputs[tensor.name][:tokens, : part.shape[1]] = part
    outputs, _ = golden.run(graph, inputs)
    return {name: array[:tokens, : compiled.graph.features(name)] for name, array in outputs.items()}


def bits(array: np.ndarray) -> bytes:
    """f24 values as bits, every NaN alike."""
    return encode("f24", np.ascontiguousarray(array)).tobytes()


def exact(
    graph: LogicalGraph, weights: Mapping[str, QuantisedWeight], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """All values of a graph, float32 [tokens, features]; constants [1, features]."""
    values = dict(arrays)
    for operation in graph.operations:
        op, operands = operation.op, [values[name] for name in operation.inputs]
        if isinstance(op, Constant):
            result = round_f24(op.value)[None]
        elif isinstance(op, Linear):
            result = _matmul(weights[operation.name], operands[0])
            if op.bias is not None:
                result = _rounded(np.add, result, round_f24(op.bias)[None])
        elif isinstance(op, Scalar):
            result = _rounded(np.multiply, operands[0], round_f24(np.array(op.constant)))
        elif isinstance(op, Binary):
            result = _rounded({"add": np.add, "mul": np.multiply}[op.operation], *operands)
        else:
            result = FUNCTIONS[op.function].unit(F24).golden(operands[0])
        values[operation.name] = result.astype(np.float32)
    return values


def _rounded(operation: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One rounding: products of 16 bits are exact in float64, sums as far as they decide the rounding."""
    with np.errstate(invalid="ignore"):
        return round_f24(operation(a.astype(np.float64), b.astype(np.float64)))


def _matmul(weight: QuantisedWeight, x: np.ndarray) -> np.ndarray:
    """Exact integers until the end of a row, design section 6."""
    K = x.shape[1]
    finite = np.isfinite(x).all(axis=1)
    values = np.where(finite[:, None], x, 0).astype(np.float64)
    edges = [*range(0, K, 32), K]
    greatest = np.stack([np.abs(values[:, a:b]).max(axis=1) for a, b in pairwise(edges)], axis=1)
    b = np.floor(np.log2(np.where(greatest > 0, greatest, 1))).astype(int)
    factor = np.where(greatest > 0, 5 + np.floor((greatest / 2.0**b - 1) * 4), 5).astype(np.int64)
    e = b - 9
    E = np.where(greatest > 0, e, -(10**6)).max(axis=1)
    E[~greatest.any(axis=1)] = 0
    total = np.zeros((len(x), len(weight.codes)), np.int64)
    for g, (first, last) in enumerate(pairwise(edges)):
        d, f = E - e[:, g], factor[:, g, None]
        kept = (greatest[:, g] > 0) & (d <= 15)
        codes = np.clip(
            np.rint(values[:, first:last] * (2**17 // f) * 2.0 ** (-17 - e[:, g, None])), -127, 127
        )
        codes = np.where(kept[:, None], codes, 0).astype(np.int64)
        term = codes @ weight.codes[:, first:last].astype(np.int64).T
        if weight.scale is not None:
            term = term * weight.scale[:, first // weight.group]
        if weight.minimum is not None:
            term += codes.sum(axis=1)[:, None] * weight.minimum[:, first // weight.group]
        total += term * f << np.where(kept, 15 - d, 0)[:, None]
    y = _precision(total.astype(np.longdouble))
    y = _precision(y * weight.row_scale.astype(np.longdouble))
    with np.errstate(over="ignore"):
        y = round_f24(np.ldexp(y.astype(np.float64), E[:, None] - 15))
    return np.where(finite[:, None], y, np.float32(np.nan))


def _precision(values: np.ndarray) -> np.ndarray:
    """Round to 16 significant bits, to nearest even, with exponents without bounds."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, 16)), exponent - 16)
