"""Names for the operations of a language model, by their purpose and not by the names in the module.

    attention_norm q k v norm_q norm_k rotate_q rotate_k keys values attention o post_attention_norm
    attention_sum feed_forward_norm gate up gated down post_feed_forward_norm feed_forward_sum

Any other operation is named by what it computes.
"""

import re
from collections.abc import Iterable, Sequence

from streamgen.model.graph.logical import Operation
from streamgen.model.operations import Attention, Binary, Cache, Linear, Norm, Rotary, Scalar, Unary

KEPT = {"k": "keys", "v": "values"}


def names_in_layer(operations: Sequence[Operation]) -> dict[str, str]:
    """A new name for each operation of a layer, by its present name."""
    return _Layer(operations).named()


def names_around(
    operations: Sequence[Operation], *, logits: str = "", taken: Iterable[str] = ()
) -> dict[str, str]:
    """Names for the operations before or after the layers, different from those `taken`."""
    names = _Names(operations, taken)
    for operation in operations:
        if operation.name == logits:
            names.give(operation, "logits")
        elif isinstance(operation.op, Linear):
            names.give(operation, "head")
    return names.named()


class _Names:
    def __init__(self, operations: Sequence[Operation], taken: Iterable[str] = ()) -> None:
        self.operations = operations
        self._taken = {*taken}
        self.by_name = {operation.name: operation for operation in operations}
        self._given: dict[str, str] = {}

    def give(self, operation: Operation | None, wanted: str) -> None:
        """Name an operation that has no name yet."""
        if operation is None or operation.name in self._given:
            return
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._given[operation.name] = name
        self._taken.add(name)

    def named(self) -> dict[str, str]:
        """All names."""
        for operation in self.operations:
            self.give(operation, _kind(operation))
        return dict(self._given)


class _Layer(_Names):
    def named(self) -> dict[str, str]:
        for operation in self.operations:
            if isinstance(operation.op, Attention):
                self.give(operation, "attention")
                for part, source in zip("qkv", operation.inputs[:3], strict=True):
                    self._projection(part, source)
                self._ending(operation, "o", "attention")
        for operation in self.operations:
            if isinstance(operation.op, Binary) and operation.op.gate:
                self.give(operation, "gated")
                for part, source in zip(("gate", "up"), operation.inputs, strict=True):
                    self._block(part, source)
                self._ending(operation, "down", "feed_forward")
            elif isinstance(operation.op, Unary):
                self._block("up", operation.inputs[0])
                self._ending(operation, "down", "feed_forward")
        return super().named()

    def _projection(self, part: str, source: str) -> None:
        """Name the chain from a query, key or value back to its Linear and the norm before."""
        operation = self.by_name.get(source)
        while operation is not None and len(operation.inputs) == 1 and not isinstance(operation.op, Linear):
            kinds = {Cache: KEPT.get(part, ""), Norm: f"norm_{part}", Rotary: f"rotate_{part}"}
            self.give(operation, kinds.get(type(operation.op)) or f"{_kind(operation)}_{part}")
            operation = self.by_name.get(operation.inputs[0])
        self._linear(operation, part, "attention_norm")

    def _block(self, part: str, source: str) -> None:
        self._linear(self.by_name.get(source), part, "feed_forward_norm")

    def _linear(self, operation: Operation | None, part: str, norm: str) -> None:
        if operation is not None and isinstance(operation.op, Linear):
            self.give(operation, part)
            before = self.by_name.get(operation.inputs[0])
            if before is not None and isinstance(before.op, Norm):
                self.give(before, norm)

    def _ending(self, operation: Operation, linear: str, block: str) -> None:
        """Name the operations from the middle of a block to the sum with the residual."""
        while True:
            readers = [o for o in self.operations if operation.name in o.inputs]
            if len(readers) != 1:
                return
            (operation,) = readers
            if operation.op == Binary("add"):
                return self.give(operation, f"{block}_sum")
            if isinstance(operation.op, Linear):
                self.give(operation, linear)
            elif isinstance(operation.op, Norm):
                self.give(operation, f"post_{block}_norm")
            elif len(operation.inputs) > 1:
                return


def _kind(operation: Operation) -> str:
    """A name for what an operation computes."""
    op = operation.op
    if isinstance(op, Binary):
        return op.operation
    if isinstance(op, Unary | Scalar):
        return op.function
    return re.sub(r"(?<=.)([A-Z])", r"_\1", type(op).__name__).lower()
