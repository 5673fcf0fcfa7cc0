"""Goals of a plan: the passes whose time the plan makes as short as possible."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

TURN = 256  # tokens of a prompt, and of its answer
LONG_PROMPT = 1024
MIDDLE = 512  # position at which the speed of an answer counts


@dataclass(frozen=True)
class Passes:
    """Equal passes. tokens: of each. position: of the first token. logits: whether they compute logits.
    count: how many there are; a number that is not whole stands for passes between two positions."""

    tokens: int
    position: int
    logits: bool
    count: float


@dataclass(frozen=True)
class Goal:
    """A goal. name: value of `CompileConfig.goal`. text: the time that counts, for reports. passes: function
    from the context (0 for a model without positions) and the tokens of a pass to the passes that count."""

    name: str
    text: str
    passes: Callable[[int, int], tuple[Passes, ...]]


def _prompt(tokens: int, most: int) -> tuple[Passes, ...]:
    """The passes of a prompt. The first, the middle and the last of those without logits stand for all."""
    full = (tokens - 1) // most
    last = Passes(tokens - full * most, full * most, True, 1.0)
    if full < 3:
        return (*(Passes(most, number * most, False, 1.0) for number in range(full)), last)
    weights = [(0, full / 6), (full - 1, full / 6), ((full - 1) // 2, full * 4 / 6)]  # Simpson's rule
    return (*(Passes(most, number * most, False, count) for number, count in weights), last)


def _answer(tokens: int, begin: int) -> tuple[Passes, ...]:
    """The steps of an answer from a position on: Simpson's rule."""
    places = [(begin, 1), (begin + tokens // 2, 4), (begin + max(0, tokens - 1), 1)]
    return tuple(Passes(1, position, True, tokens * weight / 6) for position, weight in places)


def _conversation(context: int, most: int) -> tuple[Passes, ...]:
    tokens = max(1, min(TURN, context // 2))
    return (*_prompt(tokens, most), *_answer(tokens, min(tokens, context - tokens)))


def _decode(context: int, most: int) -> tuple[Passes, ...]:
    return (Passes(1, min(MIDDLE, context // 2), True, 1.0),)


def _long_prompt(context: int, most: int) -> tuple[Passes, ...]:
    return _prompt(max(1, min(LONG_PROMPT, context)), most)


def _largest(context: int, most: int) -> tuple[Passes, ...]:
    return (Passes(most, 0, True, 1.0),)


GOALS: Mapping[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal("conversation", f"a prompt of {TURN} tokens and an answer of {TURN}", _conversation),
        Goal("decode", f"a step at position {MIDDLE}", _decode),
        Goal("prompt", f"a prompt of {LONG_PROMPT:,} tokens", _long_prompt),
        Goal("latency", "the largest pass", _largest),
    )
}
"""Goals for which the plan searches, by name."""
