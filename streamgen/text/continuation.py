"""The text that continues a prompt, piece by piece, up to its end.

A stop text may span several tokens, so the end of the text is held back while it may be the beginning of a
stop text.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from streamgen.text.tokenizer import Tokenizer

Ended = Literal["end", "stop", "length"]
"""The reason why a text has ended: the model wrote an end token, a stop text came, or the requested number of
tokens was written."""


class Continuation:
    """An iterator over pieces of text, to be used once. A character comes when all of its bytes are there.

    ids: of the tokens that continue the prompt, as they come. ends: ids that end the text and are not part of
    it. stops: texts that end it; the text is everything before the first of them.
    """

    def __init__(
        self, ids: Iterable[int], tokenizer: Tokenizer, ends: Collection[int], stops: Sequence[str] = ()
    ) -> None:
        self._source, self._stream = ids, tokenizer.stream()
        self._ends, self._stops = ends, stops
        self.ids: list[int] = []
        """Ids of the tokens so far, including the one that ended the text."""
        self.ended: Ended = "length"

    def __iter__(self) -> Iterator[str]:
        held = ""
        for text in self._texts():
            held += text
            places = [place for stop in self._stops if (place := held.find(stop)) >= 0]
            if places:
                self.ended, held = "stop", held[: min(places)]
                break
            free = len(held) - self._doubtful(held)
            if free:
                yield held[:free]
                held = held[free:]
        if held:
            yield held

    def _texts(self) -> Iterator[str]:
        """The characters that each token completes; empty for most parts of a character."""
        for index in map(int, self._source):
            self.ids.append(index)
            if index in self._ends:
                self.ended = "end"
                break
            yield self._stream.push(index)
        yield self._stream.finish()

    def _doubtful(self, text: str) -> int:
        """The number of characters at the end of a text that may begin a stop text."""
        most = max(map(len, self._stops), default=0) - 1
        return max(
            (
                n
                for n in range(1, min(most, len(text)) + 1)
                if any(s.startswith(text[-n:]) for s in self._stops)
            ),
            default=0,
        )


def stops_of(stop: Collection[int | str] | str | None) -> tuple[frozenset[int] | None, tuple[str, ...]]:
    """The ids and the texts that end a text; None if no ids are given. Raises TypeError for other values and
    ValueError for an empty text."""
    given = (stop,) if isinstance(stop, str) else tuple(stop or ())
    texts = tuple(part for part in given if isinstance(part, str))
    for part in given:
        if isinstance(part, bool) or not (isinstance(part, str) or hasattr(part, "__index__")):
            raise TypeError(f"stop holds {part!r}; ids and texts are allowed")
    if "" in texts:
        raise ValueError("stop holds an empty text; at least one character is needed")
    ids = frozenset(int(part) for part in given if not isinstance(part, str))
    return (ids if ids or (stop is not None and not texts) else None), texts
