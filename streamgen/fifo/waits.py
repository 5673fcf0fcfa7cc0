"""Who waits for whom when nothing moves any more: deadlocks named stream by stream.

A node waits at an input for the source of an empty FIFO, at an output for the target of a full one. Where
nothing moves, nodes that wait for one another stand in a cycle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamgen.fifo.curves import NodeStream


@dataclass(frozen=True)
class Wait:
    """`waiter` waits for `holder` at the FIFO `stream`, because of its `state` ("empty", "full, depth 2")."""

    waiter: str
    holder: str
    stream: str
    state: str

    def __str__(self) -> str:
        return f"{self.waiter} waits for {self.holder}: {self.stream} is {self.state}"


def cycle_of_waits(waits: Iterable[Wait]) -> list[Wait]:
    """A cycle of nodes each of which waits for the next, as the waits along it; empty when there is none."""
    by_waiter: dict[str, list[Wait]] = {}
    for wait in waits:
        by_waiter.setdefault(wait.waiter, []).append(wait)
    done: set[str] = set()
    for start in by_waiter:
        path: list[Wait] = []
        on_path = {start: 0}
        stack = [iter(by_waiter[start])] if start not in done else []
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                left = path.pop().holder if path else start
                done.add(left)
                on_path.pop(left, None)
            elif following.holder in on_path:
                return [*path, following][on_path[following.holder] :]
            elif following.holder not in done:
                path.append(following)
                on_path[following.holder] = len(path)
                stack.append(iter(by_waiter.get(following.holder, ())))
    return []


def deadlock(nodes: Sequence[str], streams: Sequence[NodeStream | None]) -> str:
    """What to say of a run that cannot end with the depths that its streams have: the cycle of waits.

    Who waits at last does not depend on time: every node goes on as far as tokens and room allow.
    """
    cycle = cycle_of_waits(_blocked(nodes, [stream for stream in streams if stream is not None]))
    return "the depths given let nodes wait for one another for ever: " + "; ".join(map(str, cycle))


def _blocked(nodes: Sequence[str], streams: Sequence[NodeStream]) -> list[Wait]:
    due: dict[str, dict[int, tuple[list[int], list[int]]]] = {name: {} for name in nodes}
    for k, stream in enumerate(streams):
        for output, (end, curve) in enumerate(
            ((stream.target, stream.consumed), (stream.source, stream.produced))
        ):
            if end is not None:
                for cycle in curve.tolist():
                    due[end].setdefault(cycle, ([], []))[output].append(k)
    left = {name: [due[name][cycle] for cycle in sorted(due[name], reverse=True)] for name in nodes}
    inside = [0 if stream.source is not None else len(stream.produced) for stream in streams]
    waits: dict[str, Wait] = {}
    todo = list(nodes)
    while todo:
        name = todo.pop()
        waits.pop(name, None)
        while left[name] and name not in waits:
            inputs, outputs = left[name][-1]
            for k in inputs:
                if not inside[k]:
                    waits[name] = Wait(name, str(streams[k].source), str(streams[k]), "empty")
            for k in [] if name in waits else list(outputs):
                target, depth = streams[k].target, streams[k].depth
                if streams[k].inside and any(not streams[other].inside for other in outputs):
                    continue
                if target is not None and inside[k] == depth:
                    waits[name] = Wait(name, target, str(streams[k]), f"full, depth {depth}")
                    continue
                outputs.remove(k)
                inside[k] += 1
                todo.append(target or name)
            if name not in waits:
                left[name].pop()
                for k in inputs:
                    inside[k] -= 1
                    todo.append(streams[k].source or name)
    return list(waits.values())
