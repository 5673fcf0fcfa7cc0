"""Language models as accelerators: compile, write, generate.

model = streamgen.compile_decoder("model.gguf", streamgen.DecoderConfig(max_tokens=16, context=512))
for text in model.generate("The sea", max_new_tokens=20):
    print(text, end="")
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamgen.config import CompileConfig, DecoderConfig
from streamgen.emit import Design, emit, place_program
from streamgen.explore.bound import pass_cycles
from streamgen.extras import needed
from streamgen.folders import new_folder
from streamgen.golden_text import GoldenModel, vocabulary_of
from streamgen.graph import Program
from streamgen.graph.logical import LogicalGraph
from streamgen.lower import finish
from streamgen.manifest import Manifest
from streamgen.operations.storage import load_graph, save_graph
from streamgen.profile import Profile, instruments, profile_pass
from streamgen.progress import Progress, terminal_progress
from streamgen.quantisation import Numbers
from streamgen.report import Notes, PassTiming, Report
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import BEST, DecoderDevice, Pass, Session
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import SimulatedDevice, simulated
from streamgen.sampling import Sampler
from streamgen.schedule import Derivation, EnginePlan
from streamgen.summary import group_report, intermediate_memory, notes_of
from streamgen.tokenizer import Tokenizer, Vocabulary
from streamgen.tokenizer_files import TOKENIZER, load_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["DecoderAccelerator", "compile_decoder", "open_decoder"]

CONFIG, MODEL = "decoder.json", "decoder.npz"


def compile_decoder(
    model: "LogicalGraph | torch.nn.Module | str | Path",
    config: DecoderConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> "DecoderAccelerator":
    """An accelerator that runs a language model of the Llama family.

    model: a GGUF file, a folder of safetensors, a torch module, or what one of them has become. tokenizer: by
    default that of the file or folder. progress: told each step; by default that goes to standard error when
    it is a terminal.

    Raises CheckpointError for a file that cannot be used, UnsupportedOperationError for a module with other
    operations, GraphError for weights that do not tile, BudgetError for a design that does not fit.
    """
    config = config or DecoderConfig()
    tell = progress or terminal_progress()
    if isinstance(model, (str, Path)):
        with needed("a checkpoint"):
            from streamgen.frontend import load_decoder  # torch takes seconds to load

        tell("reading the checkpoint")
        if tokenizer is None and (Path(model).is_file() or Path(model, TOKENIZER).is_file()):
            tokenizer = load_tokenizer(model)
        decoder = load_decoder(model)
    elif isinstance(model, LogicalGraph):
        decoder = model
    else:
        from streamgen.frontend import import_decoder

        tell("exporting the module")
        decoder = import_decoder(model)
    context = min(config.context, decoder.context)
    config = replace(config, context=context, max_tokens=min(config.max_tokens, context))
    tell("quantising the weights")
    numbers = Numbers(
        weights=config.weights,
        by_layer={"logits": config.head},
        group=config.group,
        scale_bits=config.scale_bits,
        minimum=config.minimum,
        p_bits=config.p_bits,
    )
    model = replace(decoder, context=context).quantised(numbers)
    tell("kernels, converters, FIFO depths")
    derived = _derived(model, config)
    emitted = CompileConfig(
        name=config.name, board=config.board, clock_mhz=config.clock_mhz, max_tokens=config.max_tokens
    )
    program = _finished(derived, config, partial(place_program, config=emitted))
    tell("Verilog")
    design = emit(program, emitted, max_tokens=config.max_tokens)
    tell("")
    return DecoderAccelerator(
        config,
        vocabulary_of(model),
        tokenizer,
        program=program,
        design=design,
        model=model,
        notes=_notes(config, derived, design),
    )


def _derived(model: LogicalGraph, config: DecoderConfig) -> Derivation:
    plan = EnginePlan(
        max_tokens=config.max_tokens,
        context=config.context,
        columns=config.channels,
        n_lanes=config.n_lanes,
        lanes=config.lanes,
        kv_channels=_kv_channels(config),
        prefetch=config.prefetch_beats,
        fabric=config.card.fabric,
    )
    return Derivation(model, plan, float(config.card.hbm.beats_per_cycle(config.clock_mhz)))


def _finished(
    derived: Derivation,
    config: DecoderConfig,
    place: Callable[[Program], Mapping[str, str]] | None = None,
) -> Program:
    variants = {BEST: derived.requested}
    size = config.max_tokens
    program, _ = finish(derived.graph, 1, size, config.sizing, config.context, variants, place)
    return program


def _kv_channels(config: DecoderConfig) -> int:
    return 1 << (config.channels.bit_length() - 1)


def _notes(config: DecoderConfig, derived: Derivation, design: Design) -> Notes:
    walked = [section for section in derived.schedule.sections if section.walks > 1]
    return notes_of(
        design,
        units=derived.phases,
        ended="a decoder is one group",
        converter_budget=None,
        choices=(
            f"one engine of {config.channels} columns, {config.n_lanes} rows side by side in each",
            *(
                f"{len(section.phases)} of {len(derived.phases)} phases are walked {section.walks} times"
                for section in walked
            ),
            f"keys and values lie on {_kv_channels(config)} channels",
        ),
        scheduled_cycles={},
    )


def open_decoder(folder: str | Path) -> "DecoderAccelerator":
    """The accelerator that `DecoderAccelerator.write` wrote. ValueError for a folder that is none."""
    place = Path(folder).resolve()
    try:
        notes = json.loads((place / CONFIG).read_text())
        config = DecoderConfig(**notes["config"])
        words = notes["tokenizer"]
        tokenizer = None if words is None else Tokenizer(Vocabulary(**words))
        vocabulary = notes["vocabulary"]
    except FileNotFoundError as error:
        raise ValueError(f"{place} holds no written decoder: no {CONFIG}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place / CONFIG} cannot be read: {error}") from error
    found = DecoderAccelerator(config, vocabulary, tokenizer, folder=place, notes=Notes.read(place))
    found.device()  # reads the manifest
    return found


class DecoderAccelerator:
    """A design with its golden model; runs on the simulated device.

    Either it has just been compiled, with `program`, `design` and `model`, or it is what lies in `folder`.
    notes: what `report` knows of its making.
    """

    def __init__(
        self,
        config: DecoderConfig,
        vocabulary: int,
        tokenizer: Tokenizer | None,
        *,
        program: Program | None = None,
        design: Design | None = None,
        model: LogicalGraph | None = None,
        folder: Path | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.config, self.vocabulary, self.tokenizer = config, vocabulary, tokenizer
        self._program, self._design, self._model, self._folder = program, design, model, folder
        self._notes = notes
        self._golden: GoldenModel | None = None
        self._device: DecoderDevice | None = None
        self._memory: MemoryModel | None = None

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design."""
        if self._design is not None:
            return self._design.manifest
        return (self._device or self.device()).execution.manifest

    @property
    def program(self) -> Program:
        """The graph of every run; lowered again, once, from the model of a folder.

        CheckpointError when what is written of the model is damaged, ValueError when the folder was written
        by a version of streamgen that builds other FIFOs.
        """
        if self._program is None:
            program = _finished(_derived(self._quantised, self.config), self.config)
            built = [(c.name, c.depth) for c in self.manifest.counters if c.kind == "level"]
            if built != [(edge.name, edge.depth or 1) for edge in program.graph.edges]:
                raise ValueError(
                    f"{self._folder} is of a streamgen that builds other FIFOs; compile the model again"
                )
            self._program = program
        return self._program

    @property
    def golden(self) -> GoldenModel:
        """What the accelerator must compute, bit for bit: `.logits(ids)`, `.generate(ids, n)`.

        CheckpointError when what is written of the model is damaged.
        """
        if self._golden is None:
            self._golden = GoldenModel(self._quantised)
        return self._golden

    @property
    def _quantised(self) -> LogicalGraph:
        if self._model is None:
            assert self._folder is not None
            self._model = load_graph(self._folder / MODEL)
        return self._model

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and the model into a new folder; returns it.

        FileExistsError when the folder exists and is not empty; OSError when it cannot be written. Either
        everything is written or nothing is left.
        """
        target = Path(folder).resolve()
        with new_folder(target) as partial:
            self._fill(partial)
        self.close()
        self._folder = target
        return target

    def device(self, memory: MemoryModel | None = None) -> DecoderDevice:
        """The written design on the simulated device. memory: another model than the manifest's."""
        if self._device is None or memory != self._memory:
            self.close()
            execution = Execution(self._written, memory=memory)
            self._memory = memory
            self._device = DecoderDevice(execution, self.vocabulary, self.config.context)
        return self._device

    @property
    def _written(self) -> Path:
        """Where the design is written; a folder that lives as long as this object if the user gave none."""
        if self._folder is None:
            place = Path(tempfile.mkdtemp(prefix="streamgen-"))
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            self._fill(place)
            self._folder = place
        return self._folder

    def profile(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        memory: MemoryModel | None = None,
        timeout: float = 3600.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run a text, in passes of up to `max_tokens` tokens of which the last writes its logits, and see
        where the cycles go: by phase, by kernel and phase, by stream.

        The simulator for it is built once per design, like those of probes; the device of other texts is not
        touched. memory: another model than the manifest's. timeout: seconds of a pass. progress: told what
        takes long; by default that goes to standard error when it is a terminal. Errors: those of a session
        and of `program`.
        """

        def open_device(folder: Path, manifest: Manifest) -> SimulatedDevice:
            found = simulated(folder, manifest, memory, progress, instruments(manifest))
            found.progress = progress or terminal_progress()
            return found

        assert self._notes is not None
        program, names = self.program, self._notes.units
        with Execution(self._written, open_device) as execution:
            device = DecoderDevice(execution, self.vocabulary, self.config.context, timeout)
            session = device.session()
            array = session.checked(ids)
            passes = []
            for first in range(0, len(array), device.max_tokens):
                part = array[first : first + device.max_tokens]
                variant = None if first + len(part) == len(array) else BEST

                def run(part: np.ndarray = part, first: int = first, variant: str | None = variant) -> Pass:
                    device.run(session, part, first, variant)
                    return device.passes[-1]

                simulator = execution.device
                assert isinstance(simulator, SimulatedDevice)
                graph = program.at(len(part), first, variant)
                passes.append(profile_pass(graph, names, simulator, run))
            manifest = execution.manifest
        return Profile(name=manifest.top, clock_mhz=manifest.clock_mhz, passes=tuple(passes))

    def report(self) -> Report:
        """Resources, FIFOs, converters; of all passes since the device was opened the cycles beside their
        bound, busy and stalled cycles of the kernels, and the most that each FIFO held. `profile` knows the
        phases too. Errors: those of `program`.
        """
        assert self._notes is not None
        program, manifest = self.program, self.manifest
        passes = () if self._device is None else self._device.passes
        rate = Fraction(manifest.memory.beats, manifest.memory.cycles)
        timings = [
            PassTiming(
                position=one.position,
                tokens=one.tokens,
                cycles=one.cycles,
                bound=pass_cycles(program.at(one.tokens, one.position, one.variant), rate),
            )
            for one in passes
        ]
        statuses = [one.status for one in passes]
        return Report(
            name=manifest.top,
            clock_mhz=manifest.clock_mhz,
            groups=(group_report(program.graph, manifest, self._notes, statuses, timings),),
            memory=intermediate_memory([program.graph]),
        )

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
            raise ValueError(
                "this model came without a tokenizer: give ids, or a tokenizer to compile_decoder"
            )
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
        return self._texts(found, tokenizer, stop)

    def _texts(self, ids: Iterator[int], tokenizer: Tokenizer, stop: Collection[int]) -> Iterator[str]:
        stream = tokenizer.stream()
        for one in ids:
            if one not in stop and (piece := stream.push(one)):
                yield piece
        if piece := stream.finish():
            yield piece

    def close(self) -> None:
        """Give the device back; the next pass opens it again, and texts begin anew."""
        if self._device is not None:
            self._device.execution.close()
        self._device = None

    def _fill(self, folder: Path) -> None:
        if self._design is None:
            assert self._folder is not None
            shutil.copytree(self._folder, folder, dirs_exist_ok=True)
            return
        assert self._model is not None
        for name, content in self._design.files().items():
            (folder / name).write_bytes(content)
        save_graph(self._model, folder / MODEL)
        words = None if self.tokenizer is None else asdict(self.tokenizer.vocabulary)
        notes = {"config": asdict(self.config), "vocabulary": self.vocabulary, "tokenizer": words}
        (folder / CONFIG).write_text(json.dumps(notes) + "\n")
        assert self._notes is not None
        self._notes.write(folder)
