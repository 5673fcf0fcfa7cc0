"""Language models: accelerators that compute logits and write texts.

model = streamgen.compile("model.gguf", config=streamgen.CompileConfig(max_tokens=16, context=512))
for text in model.generate("The sea", max_new_tokens=20):
    print(text, end="")
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.api.accelerator import Accelerator
from streamgen.api.groups import Group
from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packed import WeightFiles
from streamgen.artifact.roles import BEST, IDS, KEEP, LOGITS
from streamgen.artifact.written import WrittenFolder
from streamgen.base.folders import require_place
from streamgen.base.progress import Progress
from streamgen.base.turns import in_turn
from streamgen.base.wording import counted
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import packed_model
from streamgen.compiler.plan.policy import finished, whole
from streamgen.compiler.plan.record import DesignPlan
from streamgen.model.golden_text import GoldenModel
from streamgen.model.graph import Program, Regions
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations.storage import load_graph, save_graph
from streamgen.model.source import NO_SOURCE, SourceLayers, TextSource, require_source
from streamgen.observe.debugging import Debugging
from streamgen.observe.profile import Profile, Profiler
from streamgen.observe.report import Notes, PassTiming, Report
from streamgen.observe.view import RunPass
from streamgen.runtime.arrays import require_count
from streamgen.runtime.execution import Launch, OpenDevice
from streamgen.runtime.generation import Session, SourceImages, TextDevice
from streamgen.runtime.memory import MemoryModel
from streamgen.text.continuation import Continuation, stops_of
from streamgen.text.sampling import Sampler
from streamgen.text.stored import MODEL, Text, read_text, text_files, write_text
from streamgen.text.tokenizer import Tokenizer

GRAPH = "model.npz"
ENCODER = "encoder"
"""Folder of the encoder, beside the files of a language model."""


class LanguageModel(Accelerator):
    """The accelerator of a language model.

    `run(ids)` computes the logits after the last token of a text, float32 [vocabulary]. `golden(ids)`
    computes the same logits without hardware. If the text has a source (`source_layers`), its arrays follow
    the ids: those that `source` takes. model: the quantised graph; None if it is in `folder`. encoder: makes
    keys and values of the source of a text.
    """

    def __init__(
        self,
        group: Group,
        config: CompileConfig,
        text: Text,
        *,
        model: LogicalGraph | None = None,
        plan: DesignPlan | None = None,
        folder: Path | None = None,
        changed_files: bool = False,
        trust: Collection[str] = (),
        encoder: Accelerator | None = None,
    ) -> None:
        super().__init__([group], None, plan=plan, folder=folder, changed_files=changed_files)
        self.config, self.vocabulary, self.tokenizer = config, text.vocabulary, text.tokenizer
        self.text, self._model, self._trust = text, model, trust
        self.encoder = encoder
        """The accelerator of the encoder, if the model has one (`compile(text=...)`)."""
        self._device: TextDevice | None = None
        self._profiler: Profiler | None = None

    @classmethod
    def load(
        cls, folder: Path, trust: Collection[str] = (), *, changed_files: bool = False
    ) -> "LanguageModel":
        """Load a language model from the folder to which it was written. trust: packages whose operations the
        folder may use. Raises ValueError for any other folder, and CheckpointError for a damaged tokenizer or
        changed files."""
        files = WrittenFolder.read(folder, changed=changed_files)
        for name in text_files(folder):
            files.content(name)
        text, fields = read_text(folder)
        try:
            config = CompileConfig(**fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / MODEL} cannot be read: {error}") from error

        def program() -> Program:
            return model._program()

        notes = Notes.read(folder, files.content)
        model = cls(
            Group(program, notes), config, text, folder=folder, changed_files=changed_files, trust=trust
        )
        return model

    @cached_property
    def golden(self) -> GoldenModel:
        """The golden model, which computes the same bits: `golden(ids)`, `.logits(ids)`, `.generate(ids, n)`.

        Once the model is written, the golden model reads the packed weights of its folder. Raises
        CheckpointError if the written model is damaged.
        """
        return GoldenModel(self._quantised if self._folder is None else self._stored)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The input of `run`: the ids of a text."""
        return tuple(info for info in super().inputs if info.name == IDS)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The output of `run`: the logits after the last token."""
        return tuple(info for info in super().outputs if info.name == LOGITS)

    @in_turn
    def write(self, folder: str | Path) -> Path:
        place = super().write(folder)
        for name in ("golden", "_stored"):  # of an earlier folder
            vars(self).pop(name, None)
        return place

    @in_turn
    def device(
        self,
        memory: MemoryModel | None = None,
        device: OpenDevice | None = None,
        progress: Progress | None = None,
        profiled: bool = False,
    ) -> TextDevice:
        """The written design on the simulated device or on a card. memory: model of the memory; by default
        that of the manifest. device: a card of `streamgen.runtime.on_board`. progress: called with each long
        step. By default, the build of a simulator is reported on standard error, and passes are not.
        profiled: measure every pass, on a simulator that is built for this (`generate(trace=)`). Raises
        ValueError for a card that is to be profiled."""
        if (memory, device, profiled) != (self._memory, self._card, self._profiler is not None):
            self.close()
        if self._device is None or progress is not None:
            profiler = self._profiler or (Profiler() if profiled else None)
            debugging = Debugging(
                self.manifests, progress=progress, device=device, quiet=progress is None, profiler=profiler
            )
            execution = self._prepared(memory, debugging, kept=True)
            self._device = self._device or self._texts(execution.groups[0])
            self._profiler = profiler
        return self._device

    @cached_property
    def source_layers(self) -> SourceLayers | None:
        """The layers that read a source of the text; None if the text has no source."""
        return SourceLayers.of(self._quantised)

    def source(self, *inputs: Any, golden: bool = False, **given: Any) -> TextSource:
        """The source of a text. inputs: arguments of the encoder, which runs; for a model without an encoder,
        keys and values of each layer in turn, float32 [rows, features]. golden: let the golden model of the
        encoder compute the same bits. given: further arguments of the encoder's `run`, such as `device`.

        Raises the errors of the encoder's `run`, and ValueError for a model that reads no source, and for
        arrays that do not fit `source_layers`.
        """
        if (layers := self.source_layers) is None:
            raise ValueError(NO_SOURCE)
        if golden and given:
            raise ValueError(f"{', '.join(given)} has no effect on the golden model")
        if self.encoder is None:
            return TextSource.of(layers, inputs)
        rows = self.encoder.golden(*inputs) if golden else self.encoder.run(*inputs, **given)
        return TextSource.of(layers, [array.reshape(-1, array.shape[-1]) for array in rows])

    def session(
        self, device: OpenDevice | None = None, *, profiled: bool = False, source: TextSource | None = None
    ) -> Session:
        """Start a text, which is empty at first. device, profiled: see `device`. source: of the text; see
        `source`. Raises ValueError without the source that the model needs."""
        require_source(self.source_layers, source)
        return self._session(self.device(device=device, profiled=profiled), source)

    def logits(self, ids: Sequence[int] | np.ndarray, source: TextSource | None = None) -> np.ndarray:
        """Logits after each token of a text, float32 [tokens, vocabulary]. Each token takes one pass."""
        return self.session(source=source).logits(ids)

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, str]],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Collection[int | str] | str | None = None,
        golden: bool = False,
        device: OpenDevice | None = None,
        trace: str | Path | None = None,
        source: TextSource | None = None,
    ) -> Iterator[str | int]:
        """Yield the continuation of a prompt: pieces of text for a text or a chat, ids for ids. By default,
        each token is the likeliest one.

        prompt: a text, ids, or the messages of a chat, each with "role" and "content". stop: ids and texts
        that end the continuation; by default the end ids of the tokenizer. The continuation ends before a
        stop text, even if the text spans several tokens. golden: let the golden model write; no hardware is
        simulated. device: a card of `streamgen.runtime.on_board`, on which keys and values stay from pass to
        pass. trace: file for the timeline of all passes (`profile`), written at the end of the continuation.
        source: of the text; see `source`.

        Raises ValueError or TypeError before anything runs: for an empty prompt, unknown ids, sampling
        arguments out of range, a chat without a chat template, stop texts without a tokenizer, and if prompt
        and continuation exceed the context. Raises ValueError for a trace of the golden model or of a card,
        and OSError if the folder of the trace is missing.
        """
        place = None if trace is None else require_place(trace)
        if place is not None and golden:
            raise ValueError(
                "the golden model has no cycles, hence no trace; leave out one of golden and trace"
            )
        ids, tokenizer = self._prompted(prompt)
        ends, texts = stops_of(stop)
        if ends is None:
            ends = frozenset() if self.tokenizer is None else self.tokenizer.ends
        if texts and tokenizer is None:
            raise ValueError(f"stop has the text {texts[0]!r}; for a prompt of ids, only ids are allowed")
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, (int, np.integer)):
            raise TypeError(f"max_new_tokens is {max_new_tokens!r}; an integer is needed")
        choice = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        sampler = choice if temperature else None
        if golden:
            chosen = self.golden.generate(ids, max_new_tokens, sampler=sampler, stop=ends, source=source)
        else:
            session = self.session(device, profiled=place is not None, source=source)
            chosen = session.generate(ids, max_new_tokens, sampler=sampler, stop=ends)
        written: Iterator[str | int] = iter(
            chosen if tokenizer is None else Continuation(chosen, tokenizer, ends, texts)
        )
        return written if place is None else self._traced(written, place)

    @in_turn
    def measured(self, trace: str | Path | None = None) -> Profile:
        """The profile of all passes since `device(profiled=True)` was opened. trace: file for its timeline.
        Raises ValueError if no such device is open, and OSError if the file cannot be written."""
        if self._profiler is None:
            raise ValueError("no pass was profiled; open the device with `device(profiled=True)` first")
        return self._measured(self._profiler, None if trace is None else require_place(trace))

    def package(self, folder: str | Path) -> Path:
        if self.source_layers is not None:
            raise ValueError(
                "a language model with a source cannot be packaged yet: the host program of a package has no "
                "encoder. Simulate it, or package `encoder` by itself"
            )
        return super().package(folder)

    def predict(
        self, tokens: int, position: int = 0, variant: str | None = None, source: int | None = None
    ) -> int:
        """Predicted cycles of `tokens` tokens of a text, of which the first is at `position`. Nothing runs.
        More than `max_tokens` tokens take several passes.

        source: rows of the source of the text; None for the most. variant: None if the last pass writes
        logits, `BEST` if it writes the id of the greatest logit, `KEEP` if it writes nothing, as earlier
        passes do. Raises ValueError if the tokens exceed the context.
        """
        require_count("tokens", tokens)
        if variant not in (None, BEST, KEEP):
            raise ValueError(f"variant is {variant!r}; None, {BEST!r} and {KEEP!r} are allowed")
        group, manifest = self.groups[0], self.manifest
        most, total = manifest.max_tokens, 0
        for first in range(0, tokens, most):
            count, last = min(most, tokens - first), first + most >= tokens
            total += group.predict(manifest, count, position + first, variant if last else KEEP, source)
        return total

    @in_turn
    def report(self) -> Report:
        """The report: resources, FIFOs and converters. For all passes since the device was opened, it also
        has the cycles and their bounds, busy and stalled cycles of the kernels, and the greatest occupancy of
        each FIFO. `profile` also measures the phases. Raises CheckpointError if the written model is damaged.
        """
        if self._device is not None and self._device.passes:
            self._statuses = [tuple(run.status for run in self._device.passes)]
        return super().report()

    @in_turn
    def close(self) -> None:
        """Close the device. The next pass opens it again, and all texts start over."""
        super().close()
        self._device = self._profiler = None
        if self.encoder is not None:
            self.encoder.close()

    def random_inputs(self, tokens: int, seed: int) -> list[np.ndarray]:
        """Random ids of a text of `tokens` tokens: uint32 [tokens]."""
        require_count("tokens", tokens)
        return [np.random.default_rng(seed).integers(0, self.vocabulary, tokens, np.uint32)]

    def _traced(self, written: Iterator[str | int], place: Path) -> Iterator[str | int]:
        """Yield the same values, and write the timeline of all passes of the open device at the end."""
        profiler = self._profiler
        assert profiler is not None
        try:
            yield from written
        finally:
            self._measured(profiler, place)

    def _prompted(self, prompt: Any) -> tuple[Any, Tokenizer | None]:
        """The ids of a prompt, and the tokenizer if it is a text or a chat, which is answered with text."""
        text = isinstance(prompt, str)
        if not text and not (
            isinstance(prompt, (list, tuple)) and any(isinstance(p, Mapping) for p in prompt)
        ):
            return prompt, None
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise ValueError(f"{self.text.missing}: give ids, or a tokenizer to compile")
        ids = tokenizer.encode(prompt) if text else tokenizer.chat(prompt)
        if not ids:
            raise ValueError("the prompt is empty; it needs at least one token")
        return ids, tokenizer

    @in_turn
    def _run(
        self, inputs: Sequence[Any], memory: MemoryModel | None, timeout: float, debugging: Debugging
    ) -> Any:
        if not inputs or (len(inputs) != 1 and self.source_layers is None):
            raise TypeError(f"run takes the ids of a text; {len(inputs)} inputs are given")
        ids, source = inputs[0], self.source(*inputs[1:]) if inputs[1:] else None
        require_source(self.source_layers, source)
        if not debugging.needed:
            texts = self.device(memory, debugging.device, debugging.progress)
            return self._session(texts, source).last_logits(ids)
        with self._watched(memory, debugging) as execution:
            return self._session(self._texts(execution.groups[0], timeout), source).last_logits(ids)

    def _session(self, texts: TextDevice, source: TextSource | None) -> Session:
        """A new text on a device. source: of the text."""
        if source is None:
            return texts.session()
        return texts.session(SourceImages(source.rows, source.images(self.groups[0].graph)))

    def _texts(self, execution: Any, timeout: float = 3600.0) -> TextDevice:
        return TextDevice(execution, self.vocabulary, self.config.size("context"), timeout, self.turn)

    def _timings(self) -> Sequence[PassTiming]:
        group, memory = self.groups[0], self.manifest.memory
        return [
            PassTiming(
                position=run.position,
                tokens=run.tokens,
                cycles=run.cycles,
                bound=group.bound(
                    memory,
                    Launch(tiles=run.tokens, position=run.position, variant=run.variant, source=run.source),
                ),
            )
            for run in (() if self._device is None else self._device.passes)
        ]

    def _runs(self) -> Sequence[Sequence[RunPass]]:
        passes = [] if self._device is None else self._device.passes
        return [
            [
                RunPass(
                    tokens=run.tokens,
                    tiles=run.tokens,
                    position=run.position,
                    variant=run.variant,
                    cycles=run.cycles,
                )
                for run in passes
            ]
        ]

    def _passes(self, group: Group) -> Sequence[tuple[int, int, str | None]]:
        """A token in the middle of the context, and the largest pass at its beginning."""
        program = group.program
        best = BEST if BEST in program.variants else None
        passes = ((1, program.last_position(1) // 2, best), (program.max_tiles, 0, best))
        return list(dict.fromkeys(passes))

    def _interface_line(self) -> str:
        """A short text about vocabulary, context and passes."""
        vocabulary, context = counted(self.vocabulary, "id"), counted(self.config.size("context"), "token")
        return f"vocabulary {vocabulary}, context {context}, {self.config.size('max_tokens'):,} a pass"

    def _fill_interface(self, folder: Path) -> None:
        """Write the encoder; arguments and results are not nested."""
        if self.encoder is not None:
            place = folder / ENCODER
            place.mkdir()
            self.encoder.fill(place)

    def _copy(self, folder: Path) -> None:
        super()._copy(folder)
        if self.encoder is not None:
            (folder / ENCODER).mkdir()
            self.encoder.fill(folder / ENCODER)

    def _fill_program(self, group: Group, folder: Path) -> None:
        """Write the quantised model, from which loading derives the program again."""
        assert group.design is not None
        save_graph(packed_model(self._quantised, group.design.graph), folder / GRAPH)
        write_text(self.text, asdict(self.config), folder)

    @property
    def _quantised(self) -> LogicalGraph:
        """The quantised graph: that which was compiled, or that of the folder."""
        return self._stored if self._model is None else self._model

    @cached_property
    def _stored(self) -> LogicalGraph:
        """The quantised graph of the folder, whose weights are read from its weight files."""
        assert self._folder is not None
        files = WrittenFolder.read(self._folder, changed=self._changed_files)
        return load_graph(self._folder / GRAPH, files.content(GRAPH), self._trust, WeightFiles(files))

    def _program(self) -> Program:
        """Derive the program of a written model again. Raises ValueError if this version of streamgen builds
        other FIFOs."""
        model, config = self._quantised, self.config
        notes = self.groups[0].notes
        placed = Regions(tuple(slr.name for slr in notes.board.slrs), notes.instances)
        program, _ = finished(whole(model, config), model, config.sizing, lambda *_: placed)
        built = [(c.name, c.depth) for c in self.manifest.counters if c.kind == "level"]
        if built != [(edge.name, edge.depth or 1) for edge in program.graph.edges]:
            raise ValueError(
                f"{self._folder} was written by a version of streamgen that builds other FIFOs; compile the "
                "model again"
            )
        return program
