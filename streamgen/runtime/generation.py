"""Texts on a written decoder: passes of tokens, logits, generation.

The design holds keys and values of one text in its buffers of role `state`. A `Session` is a text; when
another one goes on, what the device holds of the first is put by, and brought back when it goes on itself. A
pass that fails or is interrupted leaves a session as it was: what lies behind its end is written again.

Logits are written to memory by the passes that are asked for them; a pass of the variant `BEST` writes just
the id of the greatest, one of `KEEP`, behind which a prompt goes on, nothing but keys and values.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NoReturn
from weakref import WeakKeyDictionary

import numpy as np

from streamgen.artifact.manifest import Buffer, StatusBlock
from streamgen.artifact.roles import BEST, IDS, INDEX, KEEP, LOGITS, POSITIONS
from streamgen.base.turns import Turn, in_turn
from streamgen.runtime.arrays import cropped, packed, unpacked
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Execution
from streamgen.text.prompt import checked_ids
from streamgen.text.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A run of the hardware: its tokens, from `position` on, `BEST` or `KEEP` if it wrote no logits, bytes of
    memory read and written (None: the device does not count them), and what the hardware counted."""

    position: int
    tokens: int
    variant: str | None
    bytes: int | None
    status: StatusBlock

    @property
    def cycles(self) -> int:
        """Of the run."""
        return self.status.cycles


@dataclass(frozen=True)
class TextPart:
    """Tokens of a text for one pass, the position of the first, and the variant of the run."""

    ids: np.ndarray
    position: int
    variant: str | None


class TextDevice:
    """The language model written in a folder.

    vocabulary: ids are below it. context: positions of a text. timeout: seconds of a pass. turn: of threads,
    that of whoever closes the device.
    """

    def __init__(
        self,
        execution: Execution,
        vocabulary: int,
        context: int,
        timeout: float = 3600.0,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self.execution, self.vocabulary, self.context, self.timeout = execution, vocabulary, context, timeout
        self.max_tokens = execution.manifest.max_tokens
        self.turn = turn or Turn()
        """Of threads: a pass at a time, of whichever text."""
        self._opened: Device | None = None
        self._active: Session | None = None
        # by text, what the device held of it when another one went on
        self._stored: WeakKeyDictionary[Session, dict[str, bytes]] = WeakKeyDictionary()
        self._moved: int | None = None
        self.passes: list[Pass] = []
        """Every pass so far."""

    def __reduce__(self) -> NoReturn:
        """TypeError: a device belongs to its process."""
        raise TypeError(
            f"{type(self).__name__} is neither pickled nor copied: its device belongs to one process. Write "
            "the language model with `write(folder)`; `streamgen.load(folder)` reads that in any process"
        )

    @in_turn
    def open(self) -> None:
        """Open the device now, which the first pass does otherwise: a simulator may have to be built."""
        _ = self.execution.device

    def session(self) -> "Session":
        """A text to be continued, empty at first."""
        return Session(self)

    def run(self, session: "Session", parts: Sequence[TextPart]) -> Iterator[dict[str, np.ndarray]]:
        """Passes one after the other, several in flight: what each writes, by buffer. Behind the last token:
        logits float32 [1, vocabulary], unless the variant is `BEST`, the greatest of them and its id [1, 1];
        nothing of the variant `KEEP`.
        """
        self._switch(session)
        try:
            waiting: deque[TextPart] = deque()
            for part in parts:
                if len(waiting) == self.execution.slots:
                    yield self._collected(waiting.popleft())
                tokens = len(part.ids)
                given = {
                    IDS: part.ids.astype(np.uint32),
                    POSITIONS: np.arange(part.position, part.position + tokens, dtype=np.uint32),
                }
                infos = self._infos
                images = {
                    name: packed(infos[name], array, tokens) for name, array in given.items() if name in infos
                }
                self.execution.submit(images, tokens, part.position, part.variant)
                waiting.append(part)
            while waiting:
                yield self._collected(waiting.popleft())
        finally:
            self.execution.give_up()  # whoever waits no more

    def _collected(self, part: TextPart) -> dict[str, np.ndarray]:
        device, tokens, infos = self.execution.device, len(part.ids), self._infos
        outputs = self.execution.collect(self.timeout)
        after, status = device.moved_bytes(), self.execution.statuses[-1]
        moved = None if after is None or self._moved is None else after - self._moved
        self._moved = after
        self.passes.append(
            Pass(position=part.position, tokens=tokens, variant=part.variant, bytes=moved, status=status)
        )
        return {
            name: cropped(infos[name], unpacked(infos[name], image, tokens), tokens)
            for name, image in outputs.items()
        }

    @property
    def _infos(self) -> dict[str, Buffer]:
        return {info.name: info for info in self.execution.manifest.buffers}

    def _switch(self, session: "Session") -> None:
        """Bring what a session has stored onto the device; an interruption in between loses none of them."""
        device = self.execution.device  # opened here, if it is not: with buffers of zeros
        self._moved = device.moved_bytes()
        if device is not self._opened:
            self._opened, self._active = device, None  # the text that was on it is lost
        if self._active is session:
            return
        if session.position and session not in self._stored:
            raise ValueError(
                f"the device was closed after {session.position} tokens of this text; reset() begins it anew"
            )
        states = self.execution.buffers("state")
        if self._active is not None:
            held = {info.name: device.allocate(info.name).read(info.bytes) for info in states}
            self._stored[self._active], self._active = held, None
        stored = self._stored.get(session, {})
        for info in states:
            device.allocate(info.name).write(stored.get(info.name, bytes(info.bytes)))
        self._active = session
        self._stored.pop(session, None)


class Session:
    """One text: tokens so far, with their keys and values on the device."""

    def __init__(self, device: TextDevice) -> None:
        self._device = device
        self._position = 0

    @property
    def position(self) -> int:
        """Tokens so far."""
        return self._position

    def reset(self) -> None:
        """Forget the text."""
        self._position = 0

    def last_logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Append tokens, in as many passes as they take: float32 [vocabulary], behind the last of them."""
        return self._append(self.checked(ids))[LOGITS][0]

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Append tokens, a pass each: float32 [tokens, vocabulary], behind each of them."""
        return np.concatenate([self._append(row)[LOGITS] for row in np.split(self.checked(ids), len(ids))])

    def generate(
        self,
        ids: Sequence[int] | np.ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler | None = None,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Append tokens and continue; the last token given out is not yet appended.

        Without a sampler the accelerator's own choice counts: the greatest logit, the lowest of equal ids.
        ValueError, before anything runs, as `checked` raises it.
        """
        return self._continue(self.checked(ids, max_new_tokens), max_new_tokens, sampler, frozenset(stop))

    def _continue(
        self, ids: np.ndarray, count: int, sampler: Sampler | None, stop: Collection[int]
    ) -> Iterator[int]:
        for index in range(count):
            if sampler is None:
                chosen = int(self._append(ids, BEST)[INDEX][0, 0])
            else:
                chosen = sampler(self._append(ids)[LOGITS][0])
            yield chosen
            if chosen in stop or index + 1 == count:
                return
            ids = np.array([chosen])

    def checked(self, ids: Sequence[int] | np.ndarray, room: int = 0) -> np.ndarray:
        """ids as an array; ValueError or TypeError unless they, and `room` more, can be appended."""
        device = self._device
        return checked_ids(ids, device.vocabulary, device.context, self._position, room)

    def _append(self, ids: np.ndarray, variant: str | None = None) -> dict[str, np.ndarray]:
        """variant: of the last pass; those before it keep keys and values."""
        most = self._device.max_tokens
        last: dict[str, np.ndarray] = {}
        with self._device.turn:  # of threads: all passes of one text, then those of another
            self.checked(ids)  # another thread may have gone on with the text
            parts = [
                TextPart(ids[first : first + most], self._position + first, KEEP)
                for first in range(0, len(ids), most)
            ]
            parts[-1] = replace(parts[-1], variant=variant)
            for part, found in zip(parts, self._device.run(self, parts), strict=True):
                self._position += len(part.ids)
                last = found
        return last
