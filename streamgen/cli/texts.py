"""Texts of language models on the command line: prompts, forecasts and costs."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from streamgen.api.compiling import compile, golden_model, load
from streamgen.api.language_model import LanguageModel
from streamgen.artifact.manifest import Manifest
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.artifact.roles import BEST
from streamgen.base.errors import StreamgenError
from streamgen.base.progress import Progress
from streamgen.base.remembered import remember, remembered
from streamgen.base.wording import counted, duration
from streamgen.cli.models import is_written, model_of
from streamgen.cli.options import SIMULATED, config_of, require_no_options, require_used
from streamgen.cli.sources import tokenizer_of
from streamgen.compiler.config import MOST_TOKENS
from streamgen.model.golden_text import GoldenModel, is_language_model, vocabulary_of
from streamgen.runtime.execution import OpenDevice
from streamgen.runtime.generation import Pass, TextDevice
from streamgen.runtime.simulator import SimulatedDevice
from streamgen.text.characters import id_tokenizer
from streamgen.text.sampling import Sampler
from streamgen.text.stored import NO_TOKENIZER
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer


def prompt_of(text: str | None, file: str | None) -> str:
    """The prompt of a command line.

    text: the prompt, or "-" for standard input. file: a UTF-8 file, or "-". Without both, the prompt comes
    from standard input. A line end after the last line is removed. Raises click's UsageError if there is no
    prompt.
    """
    if text is not None and file is not None:
        raise click.UsageError("give only one of --prompt and --prompt-file")
    if text is not None and text != "-":
        return text
    place = file or "-"
    unasked = text is None and file is None
    if place == "-" and (sys.stdin is None or (unasked and sys.stdin.isatty())):
        raise click.UsageError(
            "the prompt is missing; give --prompt TEXT, --prompt-file FILE, or a text on standard input"
        )
    data = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    name = "standard input" if place == "-" else place
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for a text.

    chat: whether the prompt is a message. choice: arguments of `Sampler`. Raises ValueError for bad
    arguments.
    """

    prompt: str
    chat: bool
    new_tokens: int
    choice: Mapping[str, Any]

    def __post_init__(self) -> None:
        Sampler(**self.choice)

    def ids(self, tokenizer: Tokenizer, context: int) -> list[int]:
        """The token ids of the prompt. Raises click's UsageError if it is empty or the text exceeds the
        context."""
        messages = [{"role": "user", "content": self.prompt}]
        ids = tokenizer.chat(messages) if self.chat else tokenizer.encode(self.prompt)
        if not ids:
            raise click.UsageError("the prompt is empty; it needs at least one token")
        if len(ids) + self.new_tokens > context:
            raise click.UsageError(
                f"the prompt has {counted(len(ids), 'token')}; with --max-new-tokens {self.new_tokens} the "
                f"text exceeds the context of {counted(context, 'token')}"
            )
        return ids


def _expected_cycles(model: LanguageModel, prompt: int, new: int) -> int:
    """Estimated cycles of a text with `prompt` prompt tokens and `new` new tokens. Passes of one token are
    predicted at the first and the last position; the cycles between grow linearly."""
    steps = new - 1  # the last token is not read again
    first = model.predict(prompt, 0, BEST)
    if not steps:
        return first
    ends = [model.predict(1, position, BEST) for position in (prompt, prompt + steps - 1)]
    return first + round(steps * sum(ends) / 2)


class Opened:
    """A language model that is ready to write: a golden model or an accelerator."""

    def __init__(
        self, asked: Asked, model: LanguageModel | GoldenModel, tokenizer: Tokenizer, ids: list[int]
    ) -> None:
        self.asked, self.model, self.tokenizer, self.ids = asked, model, tokenizer, ids
        self.forecast: str | None = None
        """One line that says how long the simulation of the text will take."""
        self._texts: TextDevice | None = None

    @classmethod
    def of(
        cls, source: str, asked: Asked, options: Mapping[str, Any], progress: Progress, *, golden: bool
    ) -> "Opened":
        """Open the model of a source (see `streamgen --help`). The model is compiled unless the source is a
        written folder or the golden model writes (`golden`).

        The request is checked against the tokenizer before anything is compiled, and against the model as
        soon as it is read. Raises click's UsageError for a request that cannot be met.
        """
        if is_written(source):
            require_no_options(source, options)
            loaded = load(source, changed_files=options["changed_files"])
            if not isinstance(loaded, LanguageModel):
                raise click.UsageError(f"{source} is not a language model; `streamgen simulate` runs it")
            require_used({name: "with a written folder" for name in ("checkpoint", "tokenizer")})
            tokenizer = loaded.tokenizer or _of_ids(asked, loaded.text.vocabulary, loaded.text.missing)
            ids = asked.ids(tokenizer, loaded.config.size("context"))
            return cls(asked, loaded.golden if golden else loaded, tokenizer, ids)
        config = config_of(options, goal=SIMULATED)
        model, inputs = model_of(source, progress, options)
        known = given = tokenizer_of(options)
        if known is None and isinstance(model, str | Path):
            known = load_tokenizer(model)
        if known is None:
            _require_ids(asked, None, NO_TOKENIZER)
        else:
            asked.ids(known, config.context or MOST_TOKENS)
        tokenizers = [] if known is None else [known]

        def check(name: str, graph: Any) -> None:
            if name != "import":
                return
            if not is_language_model(graph):
                raise click.UsageError(f"{source} is not a language model; `streamgen simulate` runs it")
            vocabulary = vocabulary_of(graph)
            if not tokenizers:
                tokenizers.append(_of_ids(asked, vocabulary, NO_TOKENIZER))
            tokenizers[0] = tokenizers[0].of_model(vocabulary)  # a model may have ids without a token
            asked.ids(tokenizers[0], graph.context)

        prepared: LanguageModel | GoldenModel
        if golden:
            prepared = golden_model(model, inputs, config, progress, after=check)
        else:
            prepared = compile(model, inputs, config, progress, tokenizer=given, after=check)
        (tokenizer,) = tokenizers
        return cls(asked, prepared, tokenizer, asked.ids(tokenizer, config.context or MOST_TOKENS))

    def write(self, folder: Path) -> None:
        """Write the accelerator to a new folder."""
        self._accelerator.write(folder)

    def chosen(self, card: OpenDevice | None, progress: Progress, *, profiled: bool = False) -> Iterator[int]:
        """Yield the ids that continue the prompt. card: opens a card; by default the simulator runs.
        profiled: measure the passes of the simulator (`write_trace`)."""
        new = self.asked.new_tokens
        if isinstance(self.model, GoldenModel):
            return _told(self.golden(), new, progress)
        model = self.model
        progress("building the simulator" if card is None else "loading the card")
        texts = self._texts = model.device(device=card, progress=progress, profiled=profiled)
        texts.open()
        ids = texts.session().generate(self.ids, new, sampler=self._sampler, stop=self.tokenizer.ends)
        if card is not None or not new:
            return _told(ids, new, progress)
        progress("predicting the cycles of the text")
        try:
            cycles = _expected_cycles(model, len(self.ids), new)
        except ValueError as error:  # a folder of another release has no prediction, but runs
            self.forecast = f"the duration of the simulation is unknown: {error}"
            return _told(ids, new, progress)
        simulated = _Simulated(texts, new, cycles, progress)
        model.device(progress=simulated, profiled=profiled)
        self.forecast = simulated.forecast
        return simulated.told(ids)

    def golden(self) -> Iterator[int]:
        """The ids that the golden model writes."""
        model = self.model if isinstance(self.model, GoldenModel) else self.model.golden
        new, ends = self.asked.new_tokens, self.tokenizer.ends
        return model.generate(self.ids, new, sampler=self._sampler, stop=ends)

    def write_trace(self, path: Path) -> None:
        """Write the timeline of the passes that were profiled."""
        self._accelerator.measured(path)

    @property
    def costs(self) -> "list[TextCost]":
        """Costs of the text so far; empty for the golden model."""
        if self._texts is None:
            return []
        return _costs_of(self._texts.execution.manifest, self._texts.passes, len(self.ids))

    def check_weights(self) -> None:
        """`Accelerator.check_weights`."""
        self._accelerator.check_weights()

    @property
    def _sampler(self) -> Sampler | None:
        """A new sampler with the seed of the request; None to take the likeliest ids."""
        choice = self.asked.choice
        return Sampler(**choice) if choice["temperature"] else None

    @property
    def _accelerator(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model


def _of_ids(asked: Asked, vocabulary: int, reason: str) -> Tokenizer:
    """The tokenizer of a model that has none; a prompt must be ids. reason: why there is none."""
    _require_ids(asked, vocabulary, reason)
    return id_tokenizer(vocabulary)


def _require_ids(asked: Asked, vocabulary: int | None, reason: str) -> None:
    """Raise click's UsageError unless a prompt is ids, below `vocabulary` if that is known."""
    words = asked.prompt.split()
    if not all(word.isdecimal() and (vocabulary is None or int(word) < vocabulary) for word in words):
        below = "" if vocabulary is None else f" below {vocabulary}"
        raise click.UsageError(
            f"{reason}, so the prompt must be ids{below} with spaces between them; --tokenizer DIR|FILE "
            "gives a tokenizer when the model is compiled"
        )


def _told(ids: Iterator[int], new: int, progress: Progress) -> Iterator[int]:
    """Yield the same ids, and report progress before each."""
    for number in range(1, new + 1):
        progress(f"writing token {number} of {new}")
        index = next(ids, None)
        if index is None:
            return
        yield index


class _Simulated:
    """Progress of a text on the simulator, in cycles.

    texts: the open device that runs the passes. new: number of tokens to write. cycles: predicted cycles of
    all passes.
    """

    def __init__(self, texts: TextDevice, new: int, cycles: int, progress: Progress) -> None:
        device = texts.execution.device
        assert isinstance(device, SimulatedDevice)
        self._device = device
        self._new, self._cycles, self._progress = new, cycles, progress
        self._name = f"cycles/s of {texts.execution.manifest.design_hash}"
        self._number, self._before, self._since = 0, self._device.cycles, time.monotonic()

    @property
    def forecast(self) -> str:
        """One line that says how long the text will take, and why."""
        cycles = f"about {self._cycles:,} cycles to simulate"
        if not (rate := remembered(self._name)):
            return f"{cycles}; the duration is known after the first text"
        return (
            f"{cycles}: {duration(self._cycles / rate)} at {rate:,.0f} cycles/s, the speed of the last text"
        )

    def __call__(self, message: str) -> None:
        """Report progress; the device calls this during a pass."""
        cycles, seconds = self._spent()
        goal = max(self._cycles, cycles)
        self._progress(
            f"writing token {self._number}/{self._new}, {cycles / seconds:,.0f} cycles/s, "
            f"{cycles:,} of {goal:,} cycles"
        )

    def told(self, ids: Iterator[int]) -> Iterator[int]:
        """Yield the same ids and count them. After the last id, store the simulation speed for the next
        forecast."""
        self._since = time.monotonic()
        for number in range(1, self._new + 1):
            self._number = number
            self("")
            index = next(ids, None)
            if index is None:
                break
            yield index
        cycles, seconds = self._spent()
        if cycles:
            remember(self._name, cycles / seconds)

    def _spent(self) -> tuple[int, float]:
        return self._device.cycles - self._before, max(time.monotonic() - self._since, 1e-3)


@dataclass(frozen=True, kw_only=True)
class TextCost:
    """Cost of the passes of one part of a text.

    bytes: bytes of memory read and written. limit: bytes that all channels can move in the same cycles. Both
    are None if the device does not count bytes.
    """

    part: str
    tokens: int
    passes: int
    cycles: int
    clock_mhz: float
    bytes: int | None
    limit: float | None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second at the clock of the design."""
        return self.tokens * self.clock_mhz * 1e6 / self.cycles

    def __str__(self) -> str:
        line = (
            f"{self.part}: {counted(self.tokens, 'token')} in {counted(self.passes, 'pass', 'passes')}, "
            f"{self.cycles / self.tokens:,.0f} cycles a token, "
            f"{self.tokens_per_second:,.1f} tokens/s at {self.clock_mhz:g} MHz"
        )
        if self.bytes is None or self.limit is None:
            return line
        return (
            f"{line}, {self.bytes / self.tokens / 1e3:,.1f} kB a token, "
            f"{self.bytes / self.limit:.0%} of the memory limit"
        )

    def values(self) -> dict[str, Any]:
        """Values for JSON."""
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def _costs_of(manifest: Manifest, passes: Sequence[Pass], prompt_tokens: int) -> list[TextCost]:
    """Costs of the prompt and of the tokens after it. A part without passes is left out."""
    memory, costs = manifest.memory, []
    for part, runs in (
        ("prompt", [run for run in passes if run.position < prompt_tokens]),
        ("each token after it", [run for run in passes if run.position >= prompt_tokens]),
    ):
        if not runs:
            continue
        cycles, moved = sum(run.cycles for run in runs), [run.bytes for run in runs]
        counts = [count for count in moved if count is not None]
        known = len(counts) == len(moved)
        limit = cycles * len(manifest.ports) * BEAT_BYTES * memory.beats / memory.cycles
        costs.append(
            TextCost(
                part=part,
                tokens=sum(run.tokens for run in runs),
                passes=len(runs),
                cycles=cycles,
                clock_mhz=manifest.clock_mhz,
                bytes=sum(counts) if known else None,
                limit=limit if known else None,
            )
        )
    return costs


def require_golden(ids: Sequence[int], golden: Sequence[int]) -> None:
    """Raise StreamgenError if the ids of a text differ from the golden model's."""
    for index, (written, expected) in enumerate(zip_longest(ids, golden)):
        if written != expected:
            raise StreamgenError(
                f"token {index} of the text has the id {written}; the golden model's id is {expected}"
            )
