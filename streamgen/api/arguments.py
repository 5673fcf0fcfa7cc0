"""The arrays among the arguments and results of an accelerator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.model.nests import Interface
from streamgen.runtime.arrays import array_of, random_inputs, require_count


@dataclass(frozen=True)
class Arguments:
    """Arguments and results of `Accelerator.run`.

    interface: how the module nests them; None for a graph built by hand, whose arrays come in order. inputs,
    outputs: of the design, in order.
    """

    interface: Interface | None
    inputs: Sequence[Buffer]
    outputs: Sequence[Buffer]

    @property
    def names(self) -> list[str]:
        """Names of the arrays among the arguments, in order."""
        return [info.name for info in self.inputs] if self.interface is None else self.interface.names

    def nested(self, arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """The arguments that hold these arrays, in the order of `names`. Raises ValueError for another number
        of arrays."""
        if len(arrays) != len(self.names):
            names = ", ".join(self.names)
            raise ValueError(f"{len(arrays)} arrays are given; one is needed for each of {names}")
        return tuple(arrays) if self.interface is None else self.interface.nested(arrays)

    def named(self, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
        """The arrays among arguments by name, in order."""
        if self.interface is None:
            return dict(zip(self.names, arguments, strict=True))
        return self.interface.named_arguments(arguments)

    def named_results(self, results: Any) -> dict[str, np.ndarray]:
        """The arrays among results by name, in the order of the outputs."""
        names = [info.name for info in self.outputs]
        if self.interface is not None:
            named = self.interface.named_results(results)
            return {name: named[name] for name in names}
        return dict(zip(names, results if isinstance(results, tuple) else (results,), strict=True))

    def random(self, tokens: int, seed: int) -> list[Any]:
        """Random arguments for `tokens` tokens: normal floats, uniform ids below the rows of their tables, or
        uniform integers of the format."""
        require_count("tokens", tokens)
        arrays = random_inputs(self.inputs, tokens, seed)
        if self.interface is None:
            return arrays
        named = {info.name: array for info, array in zip(self.inputs, arrays, strict=True)}
        return list(self.interface.nested(self.interface.given(named)))

    def through(self, compute: Callable[..., tuple[np.ndarray, ...]], arguments: Sequence[Any]) -> Any:
        """Apply `compute`, a function from arrays in order to arrays in order, to arguments, and nest its
        outputs."""
        given = tuple(array_of(value, f"input {index}") for index, value in enumerate(arguments))
        if self.interface is None:
            outputs = compute(*given)
            return outputs[0] if len(outputs) == 1 else outputs
        if (sequences := self.interface.without_padding(given)) is not None:
            return self._by_sequence(compute, sequences, given)
        taken = self.interface.taken(given)
        outputs = compute(*(taken[info.name] for info in self.inputs))
        names = [info.name for info in self.outputs]
        return self.interface.rebuilt(dict(zip(names, outputs, strict=True)), given)

    def _by_sequence(
        self,
        compute: Callable[..., tuple[np.ndarray, ...]],
        sequences: Sequence[Sequence[Any]],
        given: Sequence[Any],
    ) -> Any:
        """`through` for sequences of different lengths, one after the other."""
        assert self.interface is not None
        names, parts = [info.name for info in self.outputs], []
        for sequence in sequences:
            taken = self.interface.taken(sequence)
            values = compute(*(taken[info.name] for info in self.inputs))
            parts.append(dict(zip(names, values, strict=True)))
        return self.interface.rebuilt(self.interface.with_padding(parts, given), given)
