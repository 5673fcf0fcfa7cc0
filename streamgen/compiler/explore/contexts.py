"""Choose the steps of a long run that must be simulated to know the cycles of all steps.

The context of a step is what the step does, with what some steps before it and behind it do. Steps with equal
contexts take equally long. The steps between two equal contexts are a loop. If a loop is left out, every step
still follows a step that it also follows in the whole run. A loop is left out if all its contexts remain
elsewhere. Of 24 equal layers three remain; of layers of two kinds, one of each transition.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def contexts(steps: Sequence[Hashable], before: int, behind: int) -> list[Hashable]:
    """The context of each step: the steps from `before` steps before it to `behind` steps behind it. None
    stands for steps outside of the run."""
    padded = [None] * before + list(steps) + [None] * behind
    return [tuple(padded[k : k + before + 1 + behind]) for k in range(len(steps))]


def without_loops(step_contexts: Sequence[Hashable]) -> list[int]:
    """Numbers of the steps that remain, in order; at least one step of every context. step_contexts: the
    context of each step."""
    kept: list[int] = []
    places: dict[Hashable, list[int]] = {}  # in `kept`
    for step, context in enumerate(step_contexts):
        kept.append(step)
        before = places.setdefault(context, [])
        if before:
            loop = Counter(step_contexts[k] for k in kept[before[-1] + 1 :])
            loop[context] -= 1  # not in `places` yet
            if all(len(places[inner]) > times for inner, times in loop.items()):
                del kept[before[-1] + 1 :]
                for inner, times in loop.items():
                    del places[inner][len(places[inner]) - times :]
                continue
        before.append(len(kept) - 1)
    return kept


def spread(step_contexts: Sequence[Hashable], known: Mapping[int, _T], *, first: bool = False) -> list[_T]:
    """The values of all steps. known: values of some steps; every context has at least one of them. A step
    gets the value of the last step with the same context. first: of the first step instead."""
    by_context: dict[Hashable, _T] = {}
    for step, value in known.items():
        if not first or step_contexts[step] not in by_context:
            by_context[step_contexts[step]] = value
    return [by_context[context] for context in step_contexts]
