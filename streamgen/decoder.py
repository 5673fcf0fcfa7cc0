"""Language models as accelerators: compile, write, generate.

model = streamgen.compile_decoder("model.gguf", streamgen.DecoderConfig(max_tokens=16, context=512))
for text in model.generate("The sea", max_new_tokens=20):
    print(text, end="")
"""

import json
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamgen.config import CompileConfig, DecoderConfig
from streamgen.emit import Design, emit
from streamgen.golden_decoder import GoldenDecoder
from streamgen.graph import Program
from streamgen.graph.decoder import Decoder
from streamgen.graph.quantised_decoder import DecoderNumbers, QuantisedDecoder, quantise_decoder
from streamgen.lower import finish
from streamgen.lower.decoder import DecoderPlan, arrange_weights, lower_decoder
from streamgen.manifest import Manifest
from streamgen.platform.u55c import U55C
from streamgen.progress import Progress, terminal_progress
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import DecoderDevice, Session
from streamgen.runtime.memory import MemoryModel
from streamgen.sampling import Sampler
from streamgen.tokenizer import Tokenizer, Vocabulary, load_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["DecoderAccelerator", "compile_decoder", "open_decoder"]

NOTES, MODEL = "decoder.json", "decoder.npz"


def compile_decoder(
    model: "Decoder | torch.nn.Module | str | Path",
    config: DecoderConfig | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> "DecoderAccelerator":
    """An accelerator that runs a language model of the Llama family.

    model: a GGUF file, a folder of safetensors, a torch module, or what one of them has become. tokenizer: of
    a GGUF file its own, unless another one is given. progress: told each step; by default that goes to
    standard error when it is a terminal.

    Raises CheckpointError for a file that cannot be used, UnsupportedOperationError for a module with other
    operations, GraphError for weights that do not tile, BudgetError for a design that does not fit.
    """
    config = config or DecoderConfig()
    tell = progress or terminal_progress()
    if isinstance(model, (str, Path)):
        from streamgen.frontend import load_decoder  # torch takes seconds to load

        tell("reading the checkpoint")
        if tokenizer is None and Path(model).is_file():
            tokenizer = load_tokenizer(model)
        decoder = load_decoder(model)
    elif isinstance(model, Decoder):
        decoder = model
    else:
        from streamgen.frontend import import_decoder

        tell("exporting the module")
        decoder = import_decoder(model)
    context = min(config.context, decoder.context)
    config = replace(config, context=context, max_tokens=min(config.max_tokens, context))
    plan = DecoderPlan(
        max_tokens=config.max_tokens,
        context=context,
        columns=config.channels,
        n_lanes=config.n_lanes,
        lanes=config.lanes,
        kv_channels=1 << (config.channels.bit_length() - 1),
        prefetch=config.prefetch_beats,
    )
    tell("quantising the weights")
    numbers = DecoderNumbers(
        weights=config.weights,
        head=config.head,
        group=config.group,
        scale_bits=config.scale_bits,
        minimum=config.minimum,
        p_bits=config.p_bits,
    )
    model = quantise_decoder(replace(decoder, context=context), numbers)
    weights = arrange_weights(model, plan)
    rate = float(U55C.hbm.beats_per_cycle(config.clock_mhz))
    tell("kernels, converters, FIFO depths")
    program, _ = finish(
        lambda tokens, position: lower_decoder(weights, plan, rate, tokens, position),
        1,
        plan.max_tokens,
        config.sizing,
        context,
    )
    tell("Verilog")
    emitted = CompileConfig(name=config.name, clock_mhz=config.clock_mhz, max_tokens=plan.max_tokens)
    design = emit(program, emitted, max_tokens=plan.max_tokens)
    tell("")
    return DecoderAccelerator(
        config, decoder.vocabulary, tokenizer, program=program, design=design, model=model
    )


def open_decoder(folder: str | Path) -> "DecoderAccelerator":
    """The accelerator that `DecoderAccelerator.write` wrote. ValueError for a folder that is none."""
    place = Path(folder).resolve()
    try:
        notes = json.loads((place / NOTES).read_text())
        config = DecoderConfig(**notes["config"])
        words = notes["tokenizer"]
        tokenizer = None if words is None else Tokenizer(Vocabulary(**words))
        found = DecoderAccelerator(config, notes["vocabulary"], tokenizer, folder=place)
    except FileNotFoundError as error:
        raise ValueError(f"{place} holds no written decoder: no {NOTES}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place / NOTES} cannot be read: {error}") from error
    found.device()  # reads the manifest
    return found


class DecoderAccelerator:
    """A design with its golden model; runs on the simulated device.

    Either it has just been compiled, with `program`, `design` and `model`, or it is what lies in `folder`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        vocabulary: int,
        tokenizer: Tokenizer | None,
        *,
        program: Program | None = None,
        design: Design | None = None,
        model: QuantisedDecoder | None = None,
        folder: Path | None = None,
    ) -> None:
        self.config, self.vocabulary, self.tokenizer = config, vocabulary, tokenizer
        self.program = program
        """The graph of every run; None for what was opened from a folder."""
        self._design, self._model, self._folder = design, model, folder
        self._golden: GoldenDecoder | None = None
        self._device: DecoderDevice | None = None
        self._memory: MemoryModel | None = None

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design."""
        return self.device().execution.manifest if self._design is None else self._design.manifest

    @property
    def golden(self) -> GoldenDecoder:
        """What the accelerator must compute, bit for bit: `.logits(ids)`, `.generate(ids, n)`.

        CheckpointError when what is written of the model is damaged.
        """
        if self._golden is None:
            if self._model is None:
                assert self._folder is not None
                self._model = QuantisedDecoder.load(self._folder / MODEL)
            self._golden = GoldenDecoder(self._model)
        return self._golden

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and the model into a new folder; returns it.

        FileExistsError when the folder exists and is not empty; OSError when it cannot be written. Either
        everything is written or nothing is left.
        """
        target = Path(folder).resolve()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} exists and is not an empty folder; give a new name or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            self._fill(partial)
            partial.chmod(0o755)
            partial.replace(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.close()
        self._folder = target
        return target

    def device(self, memory: MemoryModel | None = None) -> DecoderDevice:
        """The written design on the simulated device. memory: another model than the manifest's."""
        if self._device is None or memory != self._memory:
            self.close()
            if self._folder is None:
                place = Path(tempfile.mkdtemp(prefix="streamgen-"))
                weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
                self._fill(place)
                self._folder = place
            execution = Execution(self._folder, memory=memory)
            self._memory = memory
            self._device = DecoderDevice(execution, self.vocabulary, self.config.context)
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
        self._model.save(folder / MODEL)
        words = None if self.tokenizer is None else asdict(self.tokenizer.vocabulary)
        notes = {"config": asdict(self.config), "vocabulary": self.vocabulary, "tokenizer": words}
        (folder / NOTES).write_text(json.dumps(notes) + "\n")
