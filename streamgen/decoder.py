"""Language models as accelerators: compile, write, generate.

model = streamgen.compile_decoder("model.gguf", streamgen.DecoderConfig(max_tokens=16, context=512))
for text in model.generate("The sea", max_new_tokens=20):
    print(text, end="")
"""

import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamgen.config import CompileConfig, DecoderConfig
from streamgen.emit import Design, emit
from streamgen.golden_decoder import GoldenConfig, GoldenDecoder
from streamgen.graph import Program
from streamgen.graph.decoder import Decoder
from streamgen.lower import finish
from streamgen.lower.decoder import DecoderPlan, lower_decoder, quantise_decoder
from streamgen.manifest import Manifest
from streamgen.platform.u55c import U55C
from streamgen.progress import Progress, terminal_progress
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import DecoderDevice, Session
from streamgen.runtime.memory import MemoryModel
from streamgen.sampling import Sampler
from streamgen.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["DecoderAccelerator", "compile_decoder"]


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
    plan = DecoderPlan(
        max_tokens=min(config.max_tokens, context),
        context=context,
        columns=config.channels,
        n_lanes=config.n_lanes,
        lanes=config.lanes,
        kv_channels=1 << (config.channels.bit_length() - 1),
        p_bits=config.p_bits,
        scale_bits=config.scale_bits,
        prefetch=config.prefetch_beats,
    )
    tell("quantising the weights")
    weights = quantise_decoder(
        decoder, plan, weights=config.weights, head=config.head, group=config.group, minimum=config.minimum
    )
    rate = float(U55C.hbm.beats_per_cycle(config.clock_mhz))
    tell("kernels, converters, FIFO depths")
    program, _ = finish(
        lambda tokens, position: lower_decoder(decoder, weights, plan, rate, tokens, position),
        1,
        plan.max_tokens,
        config.sizing,
        context,
    )
    tell("Verilog")
    emitted = CompileConfig(name=config.name, clock_mhz=config.clock_mhz, max_tokens=plan.max_tokens)
    design = emit(program, emitted, max_tokens=plan.max_tokens)
    tell("")
    return DecoderAccelerator(decoder, config, program, design, tokenizer)


class DecoderAccelerator:
    """A design with its golden model; runs on the simulated device."""

    def __init__(
        self,
        decoder: Decoder,
        config: DecoderConfig,
        program: Program,
        design: Design,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.decoder, self.config, self.program, self.tokenizer = decoder, config, program, tokenizer
        self._design = design
        self._golden: GoldenDecoder | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder: Path | None = None
        self._device: DecoderDevice | None = None
        self._memory: MemoryModel | None = None

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design."""
        return self._design.manifest

    @property
    def golden(self) -> GoldenDecoder:
        """What the accelerator must compute, bit for bit: `.logits(ids)`, `.generate(ids, n)`."""
        if self._golden is None:
            numbers = GoldenConfig(
                weights=self.config.weights,
                head=self.config.head,
                group=self.config.group,
                scale_bits=self.config.scale_bits,
                minimum=self.config.minimum,
                p_bits=self.config.p_bits,
            )
            self._golden = GoldenDecoder(self.decoder, numbers)
        return self._golden

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest and packed weights into a new folder; returns it.

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
                self._temporary = tempfile.TemporaryDirectory(prefix="streamgen.")
                self._folder = Path(self._temporary.name)
                self._fill(self._folder)
            execution = Execution(self._folder, memory=memory)
            self._memory = memory
            self._device = DecoderDevice(execution, self.decoder.vocabulary, self.program.context)
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
    ) -> Iterator[str | int]:
        """What continues a prompt, as it comes: pieces of text for a text, ids for ids. Greedy by default.

        stop: ids that end it; by default the tokenizer's end of a text. ValueError, before anything runs, for
        an empty prompt, unknown ids, sampling out of range, and when prompt and continuation are longer than
        the context.
        """
        tokenizer = self.tokenizer
        if stop is None:
            stop = () if tokenizer is None or tokenizer.end is None else (tokenizer.end,)
        sampler = None
        if temperature:
            sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        if not isinstance(prompt, str):
            return iter(self.session().generate(prompt, max_new_tokens, sampler=sampler, stop=stop))
        if tokenizer is None:
            raise ValueError(
                "this model came without a tokenizer: give ids, or a tokenizer to compile_decoder"
            )
        ids = tokenizer.encode(prompt)
        if not ids:
            raise ValueError("the prompt is empty; at least one token is needed")
        found = self.session().generate(ids, max_new_tokens, sampler=sampler, stop=stop)
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
        for name, content in self._design.files().items():
            (folder / name).write_bytes(content)
