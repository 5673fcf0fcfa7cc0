"""Language models as accelerators: logits, texts, sessions.

model = streamgen.compile("model.gguf", config=streamgen.CompileConfig(max_tokens=16, context=512))
for text in model.generate("The sea", max_new_tokens=20):
    print(text, end="")
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.accelerator import Accelerator, Group
from streamgen.config import CompileConfig
from streamgen.explore.bound import pass_cycles
from streamgen.golden_text import GoldenModel
from streamgen.graph import Program
from streamgen.graph.logical import LogicalGraph
from streamgen.manifest import Buffer
from streamgen.observe.debugging import Debugging
from streamgen.observe.report import Notes, PassTiming, Report
from streamgen.operations.storage import load_graph, save_graph
from streamgen.policy import finished, whole
from streamgen.runtime.generation import BEST, IDS, LOGITS, Session, TextDevice
from streamgen.runtime.memory import MemoryModel
from streamgen.text.sampling import Sampler
from streamgen.text.tokenizer import Tokenizer, Vocabulary

__all__ = ["MODEL", "LanguageModel", "Text"]

MODEL, GRAPH = "model.json", "model.npz"


@dataclass(frozen=True, kw_only=True)
class Text:
    """What a language model knows of texts. vocabulary: ids are below it. tokenizer: None when there is none,
    for the reason `missing`."""

    vocabulary: int
    tokenizer: Tokenizer | None
    missing: str = "this model came without a tokenizer"


class LanguageModel(Accelerator):
    """The accelerator of a language model.

    `run(ids)` computes the logits behind the last token of a text, float32 [vocabulary]; `golden(ids)` says
    what they must be. model: the quantised graph, or None where it lies in `folder`.
    """

    def __init__(
        self,
        group: Group,
        config: CompileConfig,
        text: Text,
        *,
        model: LogicalGraph | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__([group], None, folder=folder)
        self.config, self.vocabulary, self.tokenizer = config, text.vocabulary, text.tokenizer
        self.text, self._model = text, model
        self._device: TextDevice | None = None

    @classmethod
    def load(cls, folder: Path) -> "LanguageModel":
        """The one that was written into a folder. ValueError for a folder that holds none."""
        try:
            notes = json.loads((folder / MODEL).read_text())
            config, words = CompileConfig(**notes["config"]), notes["tokenizer"]
            tokenizer = None if words is None else Tokenizer(Vocabulary(**words))
            text = Text(vocabulary=notes["vocabulary"], tokenizer=tokenizer, missing=notes["missing"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / MODEL} cannot be read: {error}") from error

        def program() -> Program:
            return found._program()

        found = cls(Group(program, Notes.read(folder)), config, text, folder=folder)
        return found

    @cached_property
    def golden(self) -> GoldenModel:
        """What the accelerator must compute, bit for bit: `golden(ids)`, `.logits(ids)`, `.generate(ids, n)`.

        CheckpointError when what is written of the model is damaged.
        """
        return GoldenModel(self._quantised)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The ids of a text."""
        return tuple(info for info in super().inputs if info.name == IDS)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The logits behind it."""
        return tuple(info for info in super().outputs if info.name == LOGITS)

    def device(self, memory: MemoryModel | None = None) -> TextDevice:
        """The written design on the simulated device. memory: another model than the manifest's."""
        if self._device is None or memory != self._memory:
            self.close()
            with self._devices(memory, Debugging(self.manifests)) as execution:
                self._device = self._texts(execution.groups[0])
        return self._device

    def session(self) -> Session:
        """A text to be continued, empty at first."""
        return self.device().session()

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [tokens, vocabulary]: behind each token of a text, a pass each."""
        return self.session().logits(ids)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Collection[int] | None = None,
        golden: bool = False,
    ) -> Iterator[str | int]:
        """What continues a prompt, as it comes: pieces of text for a text, ids for ids. Greedy by default.

        stop: ids that end it; by default the tokenizer's end of a text. golden: the golden model writes, and
        no hardware is simulated. ValueError or TypeError, before anything runs, for an empty prompt, unknown
        ids, sampling out of range, and when prompt and continuation are longer than the context.
        """
        tokenizer = self.tokenizer
        if isinstance(prompt, str) and tokenizer is None:
            raise ValueError(f"{self.text.missing}: give ids, or a tokenizer to compile")
        if stop is None:
            stop = () if tokenizer is None or tokenizer.end is None else (tokenizer.end,)
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, (int, np.integer)):
            raise TypeError(f"max_new_tokens is {max_new_tokens!r}; an integer is needed")
        choice = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        sampler = choice if temperature else None
        source = self.golden if golden else self.session()
        if not isinstance(prompt, str):
            return iter(source.generate(prompt, max_new_tokens, sampler=sampler, stop=stop))
        assert tokenizer is not None
        ids = tokenizer.encode(prompt)
        if not ids:
            raise ValueError("the prompt is empty; at least one token is needed")
        found = source.generate(ids, max_new_tokens, sampler=sampler, stop=stop)
        return _pieces(found, tokenizer, stop)

    def predict(self, tokens: int, position: int = 0, variant: str | None = None) -> int:
        """Cycles of so many tokens of a text, the first at `position`, without running anything: of one pass,
        or of several when they are more than `max_tokens`.

        variant: None when the last pass writes logits, `BEST` when it writes the greatest one's id, as those
        before it do. ValueError unless the tokens lie inside the context.
        """
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; at least 1 is needed")
        if variant not in (None, BEST):
            raise ValueError(f"variant is {variant!r}; None and {BEST!r} are allowed")
        group, manifest = self.groups[0], self.manifest
        most, total = manifest.max_tokens, 0
        for first in range(0, tokens, most):
            count, last = min(most, tokens - first), first + most >= tokens
            total += group.predict(manifest, count, position + first, variant if last else BEST)
        return total

    def report(self) -> Report:
        """Resources, FIFOs, converters; of all passes since the device was opened the cycles beside their
        bound, busy and stalled cycles of the kernels, and the most that each FIFO held. `profile` knows the
        phases too. CheckpointError when what is written of the model is damaged.
        """
        if self._device is not None:
            self._statuses = [tuple(one.status for one in self._device.passes)]
        return super().report()

    def close(self) -> None:
        """Give the device back; the next pass opens it again, and texts begin anew."""
        super().close()
        self._device = None

    def random_inputs(self, tokens: int, seed: int) -> list[np.ndarray]:
        """The ids of a text of so many tokens."""
        return [np.random.default_rng(seed).integers(0, self.vocabulary, tokens, np.uint32)]

    def _run(
        self, inputs: Sequence[Any], memory: MemoryModel | None, timeout: float, debugging: Debugging
    ) -> Any:
        if len(inputs) != 1:
            raise TypeError(f"run takes the ids of a text; {len(inputs)} inputs are given")
        if not debugging.needed:
            return self.device(memory).session().last_logits(inputs[0])
        with self._devices(memory, debugging) as execution:
            return self._texts(execution.groups[0], timeout).session().last_logits(inputs[0])

    def _texts(self, execution: Any, timeout: float = 3600.0) -> TextDevice:
        return TextDevice(execution, self.vocabulary, self.config.context, timeout)

    def _timings(self) -> Sequence[PassTiming]:
        memory = self.manifest.memory
        rate, program = Fraction(memory.beats, memory.cycles), self.groups[0].program
        return [
            PassTiming(
                position=one.position,
                tokens=one.tokens,
                cycles=one.cycles,
                bound=pass_cycles(program.at(one.tokens, one.position, one.variant), rate),
            )
            for one in (() if self._device is None else self._device.passes)
        ]

    def _fill_interface(self, folder: Path) -> None:
        """What it takes and gives is a text."""

    def _fill_program(self, group: Group, folder: Path) -> None:
        """A program of so many positions is derived again from the model."""
        save_graph(self._quantised, folder / GRAPH)
        words = None if self.tokenizer is None else asdict(self.tokenizer.vocabulary)
        notes = {"config": asdict(self.config), "vocabulary": self.vocabulary, "tokenizer": words}
        (folder / MODEL).write_text(json.dumps({**notes, "missing": self.text.missing}) + "\n")

    @property
    def _quantised(self) -> LogicalGraph:
        if self._model is None:
            assert self._folder is not None
            self._model = load_graph(self._folder / GRAPH)
        return self._model

    def _program(self) -> Program:
        """Derived again, of a written model; ValueError when this version of streamgen builds other FIFOs."""
        model, config = self._quantised, self.config
        program, _ = finished(whole(model, config), model, config)
        built = [(c.name, c.depth) for c in self.manifest.counters if c.kind == "level"]
        if built != [(edge.name, edge.depth or 1) for edge in program.graph.edges]:
            raise ValueError(
                f"{self._folder} is of a streamgen that builds other FIFOs; compile the model again"
            )
        return program


def _pieces(ids: Iterator[int], tokenizer: Tokenizer, stop: Collection[int]) -> Iterator[str]:
    stream = tokenizer.stream()
    for one in ids:
        if one not in stop and (piece := stream.push(one)):
            yield piece
    if piece := stream.finish():
        yield piece
