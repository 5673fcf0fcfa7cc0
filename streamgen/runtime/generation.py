"""Texts on a written decoder: passes of tokens, logits, and generation.

The design holds the keys and values of one text in its buffers of role `state`. A `Session` is a text. When
another text continues, the host saves the keys and values of the first one, and restores them when the first
one continues. A pass that fails or is interrupted does not change its session, because the next pass
overwrites all keys and values behind the end of the text.

Only some passes write logits to memory. A pass of the variant `BEST` writes only the greatest logit and its
id. A pass of the variant `KEEP`, after which the prompt continues, writes only keys and values.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """A finished run of the hardware.

    position: position of its first token. tokens: number of tokens. source: rows of the source of the text;
    0 for none. variant: `BEST` or `KEEP`; None if it wrote logits. bytes: bytes of memory read and written;
    None if the device does not count them. status: its status block.
    """

    position: int
    tokens: int
    source: int
    variant: str | None
    bytes: int | None
    status: StatusBlock

    @property
    def cycles(self) -> int:
        """Cycles of the run."""
        return self.status.cycles


@dataclass(frozen=True)
class TextPart:
    """Tokens of a text for one pass. ids: int [tokens]. position: position of the first token. variant:
    variant of the run. source: rows of the source of the text."""

    ids: np.ndarray
    position: int
    variant: str | None
    source: int = 0


@dataclass(frozen=True, eq=False)
class SourceImages:
    """The source of a text in memory. rows: the number of its rows. images: contents of buffers of role
    `state`, by name, before the first pass."""

    rows: int
    images: Mapping[str, bytes]


class TextDevice:
    """The language model of an execution.

    vocabulary: every token id is below this number. context: the most tokens of a text. timeout: seconds for
    each pass. turn: lock that threads take for a pass; whoever closes the device takes the same lock.
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
        """Threads take this lock for the passes of a text."""
        self._opened: Device | None = None
        self._active: Session | None = None
        # for each text that is not on the device: its keys and values
        self._stored: WeakKeyDictionary[Session, dict[str, bytes]] = WeakKeyDictionary()
        self._moved: int | None = None
        self.passes: list[Pass] = []
        """All passes so far."""

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, because a device belongs to its process."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied, because its device belongs to one process. "
            "Write the language model with `write(folder)`; `streamgen.load(folder)` reads it in any process"
        )

    @in_turn
    def open(self) -> None:
        """Open the device now. Otherwise the first pass opens it, and may have to build a simulator first."""
        _ = self.execution.device

    def session(self, source: SourceImages | None = None) -> "Session":
        """Begin a new, empty text. source: of the text."""
        return Session(self, source)

    def run(self, session: "Session", parts: Sequence[TextPart]) -> Iterator[dict[str, np.ndarray]]:
        """Do passes in order, with several in flight, and yield the outputs of each pass by buffer.

        The outputs belong to the last token of the pass: logits, float32 [1, vocabulary]. The variant `BEST`
        gives the greatest logit and its id, each [1, 1]; the variant `KEEP` gives no outputs.
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
                self.execution.submit(images, tokens, part.position, part.variant, source=part.source)
                waiting.append(part)
            while waiting:
                yield self._collected(waiting.popleft())
        finally:
            self.execution.give_up()  # if the caller stops early

    def _collected(self, part: TextPart) -> dict[str, np.ndarray]:
        device, tokens, infos = self.execution.device, len(part.ids), self._infos
        outputs = self.execution.collect(self.timeout)
        after, status = device.moved_bytes(), self.execution.statuses[-1]
        moved = None if after is None or self._moved is None else after - self._moved
        self._moved = after
        self.passes.append(
            Pass(
                position=part.position,
                tokens=tokens,
                source=part.source,
                variant=part.variant,
                bytes=moved,
                status=status,
            )
        )
        return {
            name: cropped(infos[name], unpacked(infos[name], image, tokens), tokens)
            for name, image in outputs.items()
        }

    @property
    def _infos(self) -> dict[str, Buffer]:
        return {info.name: info for info in self.execution.manifest.buffers}

    def _switch(self, session: "Session") -> None:
        """Bring the keys and values of a session onto the device. An interruption loses no session."""
        device = self.execution.device  # opened here if needed, with buffers of zeros
        self._moved = device.moved_bytes()
        if device is not self._opened:
            self._opened, self._active = device, None  # the text that was on it is lost
        if self._active is session:
            return
        if session.position and session not in self._stored:
            raise ValueError(
                f"the device was closed after {session.position} tokens of this text; reset() starts the "
                "text again"
            )
        states = self.execution.buffers("state")
        if self._active is not None:
            held = {info.name: device.allocate(info.name).read(info.bytes) for info in states}
            self._stored[self._active], self._active = held, None
        stored = self._stored.get(session, {} if session.source is None else session.source.images)
        for info in states:
            device.allocate(info.name).write(stored.get(info.name, bytes(info.bytes)))
        self._active = session
        self._stored.pop(session, None)


class Session:
    """One text: its tokens so far, with their keys and values on the device."""

    def __init__(self, device: TextDevice, source: SourceImages | None = None) -> None:
        self._device, self.source = device, source
        self._position = 0

    @property
    def position(self) -> int:
        """Number of tokens so far."""
        return self._position

    def reset(self) -> None:
        """Start again with an empty text."""
        self._position = 0

    def last_logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Append tokens in as few passes as possible, and return the logits after the last one: float32
        [vocabulary]."""
        return self._append(self.checked(ids))[LOGITS][0]

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Append tokens, one in each pass, and return the logits after each: float32 [tokens, vocabulary]."""
        return np.concatenate([self._append(row)[LOGITS] for row in np.split(self.checked(ids), len(ids))])

    def generate(
        self,
        ids: Sequence[int] | np.ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler | None = None,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Append tokens and continue the text: yield up to `max_new_tokens` ids. The last yielded token is
        not yet appended. stop: ids after which generation ends.

        Without a sampler the accelerator chooses: the greatest logit, and the lowest id among equal logits.
        Raises the errors of `checked` before anything runs.
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
        """The ids as an array. Raises ValueError or TypeError if they and `room` more do not fit the text."""
        device = self._device
        return checked_ids(ids, device.vocabulary, device.context, self._position, room)

    def _append(self, ids: np.ndarray, variant: str | None = None) -> dict[str, np.ndarray]:
        """Append tokens and return the outputs of the last pass. variant: variant of the last pass; the
        passes before it write only keys and values."""
        most, rows = self._device.max_tokens, 0 if self.source is None else self.source.rows
        last: dict[str, np.ndarray] = {}
        with self._device.turn:  # no passes of other texts in between
            self.checked(ids)  # another thread may have continued the text
            parts = [
                TextPart(ids[first : first + most], self._position + first, KEEP, rows)
                for first in range(0, len(ids), most)
            ]
            parts[-1] = replace(parts[-1], variant=variant)
            for part, outputs in zip(parts, self._device.run(self, parts), strict=True):
                self._position += len(part.ids)
                last = outputs
        return last
