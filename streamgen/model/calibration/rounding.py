"""Rounds each matmul for the inputs that it gets on sample texts.

The texts run through the graph once, operation by operation, in the arithmetic of the accelerator. A matmul
therefore sees activations after the earlier matmuls, which are already rounded, and after the quantiser of
the hardware.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamgen.base.errors import CheckpointError
from streamgen.base.files import read_arrays
from streamgen.base.folders import new_file
from streamgen.base.progress import Progress
from streamgen.model.graph.logical import LogicalGraph, Operation, Operator, Repeat
from streamgen.model.graph.run import Run
from streamgen.model.operations.balance import balanced
from streamgen.model.operations.exact_linear import quantise_activations
from streamgen.numbers.error_feedback import FORMAT, quantise_w4_on
from streamgen.numbers.quantisation import Numbers, QuantisedWeight

KEY_FILE = "calibration.json"
PARTS = ("codes", "scale", "minimum", "row_scale")

Texts = Sequence[Mapping[str, npt.ArrayLike]]


def calibrated(
    graph: LogicalGraph,
    texts: Texts,
    numbers: Numbers,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> LogicalGraph:
    """The graph with its weights on the grids of the hardware; w4 weights are rounded for these inputs.

    texts: inputs of passes that begin at position 0, arrays [tokens, features] or ids [tokens] by name.
    Matmuls that bring a grid keep it; `numbers` chooses which others are w4. folder: stores each finished
    matmul, so that the same call continues after an interruption.

    Raises ValueError for no texts, for texts that do not fit the inputs of the graph, and for floats that
    need another narrow format than w4; CheckpointError for a folder of other texts, weights or numbers, or a
    damaged one.
    """
    if not texts:
        raise ValueError("calibration needs texts; there are none")
    kept = None if folder is None else _Kept(Path(folder), _key(graph, texts, numbers))
    return _Calibration(balanced(graph), numbers, kept, progress or (lambda message: None)).of(texts)


class _CalibrationText:
    """One text and its values so far in the graph."""

    def __init__(self, graph: LogicalGraph, inputs: Mapping[str, npt.ArrayLike]) -> None:
        names = {value.name for value in graph.inputs}
        if names != set(inputs):
            raise ValueError(f"inputs are {sorted(names)}, a text has {sorted(inputs)}")
        self.values: dict[str, Any] = {}
        for value in graph.inputs:
            array = np.asarray(inputs[value.name])
            shape = (len(array),) if value.kind == "ids" else (len(array), value.features)
            if array.shape != shape or not len(array):
                raise ValueError(f"input {value.name!r} of a text has shape {list(array.shape)}")
            self.values[value.name] = array if value.kind == "ids" else array.astype(np.float32)
        tokens = len(next(iter(self.values.values())))
        if graph.context and tokens > graph.context:
            raise ValueError(f"a text has {tokens} tokens; the context is {graph.context}")
        self.run = Run(tokens, every_row=True, dtype=np.float32)

    def step(self, path: str, operation: Operation, function: Any) -> None:
        """Compute an operation."""
        self.run.path = path
        results = function(self.run, *(self.values[name] for name in operation.inputs))
        results = results if operation.op.results else (results,)
        self.values |= zip(operation.values, results, strict=True)
        self.run.forget()


class _Calibration:
    def __init__(self, graph: LogicalGraph, numbers: Numbers, kept: "_Kept | None", tell: Progress) -> None:
        self.graph, self.numbers, self.kept, self.tell = graph, numbers, kept, tell
        fitted = {
            path: numbers.weight_format(path, matmul.wanted)
            for path, matmul in graph.matmuls()
            if matmul.is_fitted(numbers, path)
        }
        for path, form in fitted.items():
            if form != FORMAT.name:
                raise ValueError(
                    f"{path} is to be {form}; calibration rounds to {FORMAT.name}: give the matmul that "
                    "format, or leave calibration out"
                )
        self.wanted = [*fitted]
        self.left = set(self.wanted)

    def of(self, texts: Texts) -> LogicalGraph:
        running = [_CalibrationText(self.graph, inputs) for inputs in texts]
        try:
            return self._walk(self.graph, running, "")
        finally:
            self.tell("")

    def _walk(self, graph: LogicalGraph, texts: Sequence[_CalibrationText], prefix: str) -> LogicalGraph:
        """The graph with its operations quantised; each text keeps its values as long as an operation reads
        them."""
        done: list[Operation] = []
        moments: dict[str, np.ndarray] = {}
        for index, operation in enumerate(graph.operations):
            path = f"{prefix}{operation.name}"
            if operation.op.layers:
                op: Operator = self._layers(operation, texts, path)
            elif path in self.left:
                op = self._rounded(path, operation, texts, moments)
            else:
                op = operation.op.quantised(self.numbers, path)
            done.append(replace(operation, op=op))
            if self.left and not op.layers:
                function = op.exact()
                for text in texts:
                    text.step(path, operation, function)
            needed = {*graph.outputs, *(name for o in graph.operations[index + 1 :] for name in o.inputs)}
            for text in texts:
                text.values = {name: value for name, value in text.values.items() if name in needed}
            moments = {name: moment for name, moment in moments.items() if name in needed}
        return replace(graph, operations=tuple(done))

    def _layers(self, operation: Operation, texts: Sequence[_CalibrationText], path: str) -> Repeat:
        """Quantise layer after layer; each layer has its own values."""
        outer = [text.values for text in texts]
        given = [[text.values[name] for name in operation.inputs] for text in texts]
        layers = []
        for index, layer in enumerate(operation.op.layers):
            for text, values in zip(texts, given, strict=True):
                text.values = dict(zip((value.name for value in layer.inputs), values, strict=True))
                text.run.kept.clear()
            layers.append(self._walk(layer, texts, f"{path}[{index}]."))
            if self.left:
                given = [[text.values[name] for name in layer.outputs] for text in texts]
        for text, before, results in zip(texts, outer, given, strict=True):
            text.values = before | dict(zip(operation.values, results, strict=True))
        return Repeat(tuple(layers))

    def _rounded(
        self,
        path: str,
        operation: Operation,
        texts: Sequence[_CalibrationText],
        moments: dict[str, np.ndarray],
    ) -> Operator:
        """Round a matmul, or read the result of an earlier call."""
        matmul, (source,) = operation.op.matmul, operation.inputs
        assert matmul is not None
        self.tell(f"calibrating {path}, {len(self.wanted) - len(self.left) + 1} of {len(self.wanted)}")
        weight = None if self.kept is None else self.kept.read(path)
        if weight is None:
            if source not in moments:
                moments[source] = _moments([text.values[source] for text in texts])
            numbers = self.numbers
            try:
                weight = quantise_w4_on(
                    matmul.floats,
                    moments[source],
                    group=numbers.group,
                    scale_bits=numbers.scale_bits,
                    minimum=numbers.minimum,
                )
            except ValueError as error:
                raise ValueError(f"weight of {path}: {error}") from error
            if self.kept is not None:
                self.kept.write(path, weight)
        self.left.remove(path)
        return matmul.with_weight(weight)


def _moments(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of x^T x over the rows, after the quantiser of the hardware."""
    K = rows[0].shape[1]
    total = np.zeros((K, K))
    for x in rows:
        reals = quantise_activations(x).reals()[:, :K]
        total += reals.T @ reals
    return total


class _Kept:
    """The folder of finished matmuls, one file each, written completely or not at all."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / KEY_FILE
        if not file.exists():
            with new_file(file) as new:
                new.write(json.dumps({"key": key}).encode())
        try:
            stored = json.loads(file.read_bytes())["key"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged: {error}; remove the folder to begin again") from error
        if stored != key:
            raise CheckpointError(
                f"{folder} belongs to a calibration with other texts, weights or numbers; give another folder"
            )

    def read(self, path: str) -> QuantisedWeight | None:
        file = self._file(path)
        if not file.exists():
            return None
        try:
            arrays = read_arrays(file.read_bytes())
            codes, row_scale, group = (arrays[part] for part in ("codes", "row_scale", "group"))
            scale, minimum = arrays.get("scale"), arrays.get("minimum")
            return QuantisedWeight(codes, scale, minimum, row_scale, FORMAT.name, int(group))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged: {error}; remove it to have it made again") from error

    def write(self, path: str, weight: QuantisedWeight) -> None:
        arrays = {part: getattr(weight, part) for part in PARTS if getattr(weight, part) is not None}
        with new_file(self._file(path)) as file:
            np.savez(file, allow_pickle=False, group=np.array(weight.group), **arrays)

    def _file(self, path: str) -> Path:
        return self.folder / f"{path}.npz"


def _key(graph: LogicalGraph, texts: Texts, numbers: Numbers) -> str:
    """A digest of everything that the result depends on."""
    digest = blake2b(repr((numbers, graph.form())).encode(), digest_size=16)
    for text in texts:
        for name in sorted(text):
            array = np.ascontiguousarray(text[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    for path, matmul in graph.matmuls():
        digest.update(path.encode())
        digest.update(np.ascontiguousarray(matmul.floats).tobytes())
    return digest.hexdigest()
