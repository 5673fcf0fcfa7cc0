"""The golden model of a language model: numpy computes exactly the bits that the accelerator computes for a
text.

The arithmetic is that of the exact interpreter of a quantised graph (`graph.interpret`) whose first output is
the logits. This module handles texts: it checks ids, splits them into passes, and keeps positions and state.
It is fast enough to measure the quality of a model.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy import ndarray

from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.run import State
from streamgen.model.source import SourceLayers, TextSource, require_source
from streamgen.text.prompt import checked_ids
from streamgen.text.sampling import Sampler

PASS_TOKENS = 256


def is_language_model(graph: LogicalGraph) -> bool:
    """Whether a graph takes ids and computes logits after the last id, when requested, and the
    likeliest id."""
    return (
        graph.context > 0
        and [value.kind for value in graph.inputs] == ["ids"]
        and graph.outputs[0] in graph.requested
        and len(graph.outputs) == 3
        and all(graph.shapes[name].rows == "one" for name in graph.outputs)
    )


def vocabulary_of(model: LogicalGraph) -> int:
    """The number of rows of the table of ids; all ids are below it."""
    return next(size for _, o in model.walk() if (size := o.op.vocabulary) is not None)


class GoldenModel:
    """A language model with quantised weights."""

    def __init__(self, model: LogicalGraph) -> None:
        self.vocabulary, self.context = vocabulary_of(model), model.context
        self.layers = SourceLayers.of(model)
        """The attentions over the source of a text, if the model has such."""
        self._interpreter = exact(model)
        (self._ids,) = (value.name for value in model.inputs)
        self._logits = model.outputs[0]

    def __call__(self, ids: Sequence[int] | ndarray, source: TextSource | None = None) -> ndarray:
        """float32 [vocabulary]: the logits after the last token of a text. source: see `session`."""
        return self.session(source).last_logits(ids)

    def session(self, source: TextSource | None = None) -> "GoldenSession":
        """A new, empty text. source: of the text. Raises ValueError if the model needs a source and none is
        given, or the other way around."""
        require_source(self.layers, source)
        return GoldenSession(self, source)

    def logits(
        self,
        ids: Sequence[int] | ndarray,
        pass_tokens: int = PASS_TOKENS,
        source: TextSource | None = None,
    ) -> ndarray:
        """float32 [tokens, vocabulary]: the logits after each token of a text, in passes of at most
        `pass_tokens`. source: see `session`.

        Raises ValueError for no ids, unknown ids and more ids than the context holds; TypeError unless ids
        are integers.
        """
        if pass_tokens < 1:
            raise ValueError(f"pass_tokens is {pass_tokens}; at least 1 is needed")
        session = self.session(source)
        ids = session.checked(ids)
        parts = [ids[first : first + pass_tokens] for first in range(0, len(ids), pass_tokens)]
        return np.concatenate([session.logits(part) for part in parts])

    def generate(
        self,
        ids: Sequence[int] | ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler | None = None,
        stop: Collection[int] = (),
        source: TextSource | None = None,
    ) -> Iterator[int]:
        """The ids that continue a text, as they come; an id in `stop` is the last one.

        source: see `session`. sampler: greedy by default. Raises the ValueErrors of `logits`, and ValueError
        if the continued text is longer than the context; both before anything runs.
        """
        session = self.session(source)
        prompt = session.checked(ids, max_new_tokens)
        return session.generate(prompt, max_new_tokens, sampler=sampler or Sampler(), stop=stop)

    def run(self, ids: ndarray, position: int, state: State, every_row: bool) -> tuple[ndarray, State]:
        """One pass: logits float32 [rows, vocabulary], and the state after it."""
        outputs, state = self._interpreter(
            {self._ids: ids}, position=position, state=state, every_row=every_row, outputs=(self._logits,)
        )
        return outputs[self._logits], state


class GoldenSession:
    """One text: its tokens so far, and their state. An interrupted pass does not change it."""

    def __init__(self, model: GoldenModel, source: TextSource | None = None) -> None:
        self._model, self._source = model, source
        self.reset()

    @property
    def position(self) -> int:
        """The number of tokens so far."""
        return self._position

    def reset(self) -> None:
        """Make the text empty again."""
        self._position = 0
        self._state: State = {} if self._source is None else self._source.state

    def logits(self, ids: Sequence[int] | ndarray) -> ndarray:
        """Append tokens as one pass: float32 [tokens, vocabulary], the logits after each token."""
        return self._append(ids, True)

    def last_logits(self, ids: Sequence[int] | ndarray) -> ndarray:
        """Append tokens as one pass: float32 [vocabulary], the logits after the last token."""
        return self._append(ids, False)[-1]

    def generate(
        self,
        ids: Sequence[int] | ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Append tokens and continue the text; the last id returned is not appended yet."""
        for index in range(max_new_tokens):
            ids = [sampler(self.last_logits(ids))]
            yield ids[0]
            if ids[0] in stop or index + 1 == max_new_tokens:
                return

    def checked(self, ids: Sequence[int] | ndarray, room: int = 0) -> ndarray:
        """ids as an array; ValueError or TypeError unless they, and `room` more, can be appended."""
        model = self._model
        return checked_ids(ids, model.vocabulary, model.context, self._position, room)

    def _append(self, ids: Sequence[int] | ndarray, every_row: bool) -> ndarray:
        ids = self.checked(ids)
        logits, state = self._model.run(ids, self._position, self._state, every_row)
        self._position, self._state = self._position + len(ids), state
        return logits
