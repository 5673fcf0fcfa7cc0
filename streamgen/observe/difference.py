"""The first token that differs from the golden model: its place, its value, and the faulty kernel.

If a wrong token enters a FIFO, the kernel before the FIFO is at fault. If the token entered correctly and
leaves wrong, the FIFO is at fault. If the tokens stop, the fault is at the first kernel that has its inputs
and room for its output. If all tokens are right but the memory is wrong, the last kernel stored them wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import MemoryLayout
from streamgen.itensor import ITensor
from streamgen.model.graph import Edge, Graph
from streamgen.numbers import formats
from streamgen.runtime.arrays import stream_of
from streamgen.runtime.observed import Watched


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first token that differs from the golden model.

    kind, place: an edge or an output in memory, and its name. node: the faulty kernel; None if the FIFO of
    the edge is at fault. run: number of the run of the hardware, from 1. cycle: cycle of that run; None if no
    cycle belongs to the fault. token, tokens: index of the token, and number of all tokens. element: index of
    the element in the tensor; None for a missing or an extra token. verdict: why this kernel is at fault.
    """

    kind: Literal["edge", "output"]
    place: str
    node: str | None
    run: int
    cycle: int | None
    token: int
    tokens: int
    dtype: str
    element: tuple[int, ...] | None
    expected: str
    seen: str
    verdict: str

    def __str__(self) -> str:
        when = f"run {self.run}" if self.cycle is None else f"cycle {self.cycle} of run {self.run}"
        what = "" if self.element is None else f"element {list(self.element)} of {self.dtype}: "
        return (
            f"{self.kind} {self.place} differs from the golden model first, at token {self.token} (of "
            f"{self.tokens}), {when}\n"
            f"  {what}expected {self.expected}, got {self.seen}\n"
            f"  {self.verdict}"
        )


@dataclass(frozen=True)
class Expectation:
    """A run of a graph and the expected tokens of its edges, as bytes of shape (tokens, bytes of a token)."""

    graph: Graph
    edges: Sequence[Edge]
    expected: Sequence[np.ndarray]
    number: int

    def complete(self, seen: Watched) -> bool:
        """Whether every token has passed every FIFO."""
        return all(out == len(e) for (_, out), e in zip(seen.passed, self.expected, strict=True))

    def difference(self, seen: Watched) -> Difference | None:
        """The token at which the simulator stopped."""
        if seen.difference is None:
            return None
        k, side, cycle, content = seen.difference
        edge, token = self.edges[k], seen.passed[k]["io".index(side)]
        node, verdict = (
            (edge.source.node, f"made by {self._kind(edge.source.node)}")
            if side == "i"
            else (None, "the token entered the FIFO of this edge correctly")
        )
        if token == len(self.expected[k]):
            return self._difference(edge, node, cycle, token, None, "no token", "an extra token", verdict)
        itensor, number = self._itensor(edge, token)
        what = _compare(itensor, number, self.expected[k][token], np.frombuffer(content, np.uint8))
        return self._difference(edge, node, cycle, token, *what, verdict)

    def owed(self, seen: Watched) -> Difference | None:
        """The missing token of the first node that waits neither for an input nor for room at an output."""
        state = {
            edge.name: (into, out, len(expected))
            for edge, expected, (into, out) in zip(self.edges, self.expected, seen.passed, strict=True)
        }
        if len(state) < len(self.graph.edges):
            return None
        for node in self.graph.nodes:
            inputs, outputs = (
                [(edge, *state[edge.name]) for edge in edges]
                for edges in (self.graph.inputs_of(node.name), self.graph.outputs_of(node.name))
            )
            if any(out < total and into == out for _, into, out, total in inputs):
                continue  # it waits for a token
            if any(into - out >= (edge.depth or 1) for edge, into, out, _ in outputs):
                continue  # it waits for room
            for edge, into, _, total in outputs:
                if into < total:
                    verdict = f"{self._kind(node.name)} has its inputs and room for the token"
                    return self._never(edge, node.name, into, "goes into", verdict)
            for edge, _, out, total in inputs:
                if out < total:
                    verdict = f"{self._kind(node.name)} does not take the token, or the FIFO has lost it"
                    return self._never(edge, node.name, out, "comes out of", verdict)
        return None

    def absent(self, seen: Watched) -> Difference | None:
        """The first missing token, if its kernel cannot be determined."""
        for edge, expected, (into, out) in zip(self.edges, self.expected, seen.passed, strict=True):
            if out < len(expected):
                node = edge.source.node if into < len(expected) else edge.target.node
                verb = "goes into" if into < len(expected) else "comes out of"
                return self._never(edge, node, into if into < len(expected) else out, verb, self._kind(node))
        return None

    def stored(self, info: Buffer, tiles: int, expected: bytes, seen: bytes) -> Difference:
        """The first wrong element of an output in memory whose tokens were right."""
        stream = stream_of(info, tiles)
        layout = MemoryLayout.of(stream)
        expected_bytes, seen_bytes = np.frombuffer(expected, np.uint8), np.frombuffer(seen, np.uint8)
        byte = int(np.flatnonzero(expected_bytes != seen_bytes)[0])
        token, bit = divmod(8 * byte, layout.token_slot)
        number = bit // layout.element_slot
        inside = token < stream.token_count and number < prod(stream.element_shape)
        node = next(tensor.node for tensor in self.graph.tensors if tensor.name == info.name)
        return Difference(
            kind="output", place=info.name, node=node, run=self.number, cycle=None, token=token,
            tokens=stream.token_count, dtype=stream.dtype,
            element=_place(stream, token, number) if inside else None,
            expected=_word(expected_bytes, byte, stream.dtype), seen=_word(seen_bytes, byte, stream.dtype),
            verdict=f"all edges are right; {self._kind(node)} wrote the memory",
        )  # fmt: skip

    def _never(self, edge: Edge, node: str, token: int, verb: str, verdict: str) -> Difference:
        seen = f"none that {verb} the FIFO"
        return self._difference(edge, node, None, token, None, "a token", seen, verdict)

    def _difference(
        self,
        edge: Edge,
        node: str | None,
        cycle: int | None,
        token: int,
        element: tuple[int, ...] | None,
        expected: str,
        seen: str,
        verdict: str,
    ) -> Difference:
        return Difference(
            kind="edge", place=edge.name, node=node, run=self.number, cycle=cycle, token=token,
            tokens=len(self.expected[self.edges.index(edge)]), dtype=self._itensor(edge, 0)[0].dtype,
            element=element, expected=expected, seen=seen, verdict=verdict,
        )  # fmt: skip

    def _kind(self, node: str) -> str:
        return f"{node} ({type(self.graph.node(node).params).__name__.removesuffix('Params')})"

    def _itensor(self, edge: Edge, token: int) -> tuple[ITensor, int]:
        """The itensor of the phase in which a token passes, and the number that it has there."""
        for phase in range(self.graph.phases):
            itensor = self.graph.itensor(edge, phase)
            if itensor is None:
                continue
            if token < itensor.token_count:
                return itensor, token
            token -= itensor.token_count
        raise AssertionError("a token of no phase")


def _compare(
    itensor: ITensor, token: int, expected: np.ndarray, seen: np.ndarray
) -> tuple[tuple[int, ...], str, str]:
    """The first element in which two tokens differ, its index in the tensor, and both values."""
    if formats.is_mx(itensor.dtype):
        element, expected_value, seen_value = _compare_groups(itensor, expected, seen)
    else:
        tokens = [formats.decode(itensor.dtype, t[None], itensor.element_shape)[0] for t in (expected, seen)]
        bits = [np.ascontiguousarray(t).reshape(-1, 1).view(np.uint8) for t in tokens]
        element = int(np.flatnonzero((bits[0] != bits[1]).any(axis=1))[0])
        expected_value, seen_value = (str(t.flat[element]) for t in tokens)
        if expected_value == seen_value:  # NaNs of different bits
            expected_value, seen_value = (
                f"{expected_value} ({b[element, ::-1].tobytes().hex()})" for b in bits
            )
    return _place(itensor, token, element), expected_value, seen_value


def _compare_groups(itensor: ITensor, expected: np.ndarray, seen: np.ndarray) -> tuple[int, str, str]:
    """Number of the first element of groups of codes that differs, both codes, or shifts, or group sums."""
    groups = prod(itensor.element_shape) // formats.MX_GROUP
    expected_groups, seen_groups = expected.reshape(groups, -1), seen.reshape(groups, -1)
    group = int(np.flatnonzero((expected_groups != seen_groups).any(axis=1))[0])
    byte = int(np.flatnonzero(expected_groups[group] != seen_groups[group])[0])
    pair = (expected_groups[group], seen_groups[group])
    start = group * formats.MX_GROUP
    if byte < formats.MX_GROUP:
        codes = [str(part.view(np.int8)[byte]) for part in pair]
        return start + byte, codes[0], codes[1]
    if byte == formats.MX_GROUP:
        return start, f"shift {pair[0][byte]}", f"shift {pair[1][byte]}"
    sums = [int.from_bytes(part[formats.MX_GROUP + 1 :].tobytes(), "little", signed=True) for part in pair]
    return start, f"group sum {sums[0]}", f"group sum {sums[1]}"


def _place(itensor: ITensor, token: int, element: int) -> tuple[int, ...]:
    """Index in the tensor of an element of a token."""
    start = [
        o + int(i)
        for o, i in zip(itensor.base, np.unravel_index(element, itensor.element_shape), strict=True)
    ]
    for trip, step in reversed(itensor.loops):
        token, index = divmod(token, trip)
        start = [o + index * s for o, s in zip(start, step, strict=True)]
    return tuple(start)


def _word(image: np.ndarray, byte: int, dtype: str) -> str:
    """What lies in memory at the 32-bit word of a byte, as a number if it is one."""
    word = image[byte // 4 * 4 : byte // 4 * 4 + 4]
    return str(word.view("<f4")[0]) if dtype in ("f24", "f32") else f"{word.view('<u4')[0]:#010x}"
