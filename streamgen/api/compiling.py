"""Compile a model to an accelerator that can be written and run.

compile: frontend -> quantise weights -> policy: groups, factors; then for each group
    schedule -> bind -> steer -> forks -> converters -> place -> FIFO depths -> emit
assemble: the steps of a group from forks on, for a graph of kernels
"""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from streamgen.api.accelerator import Accelerator
from streamgen.api.groups import Group
from streamgen.api.language_model import ENCODER, GRAPH, LanguageModel
from streamgen.api.sentence_encoder import GoldenEncoder, SentenceEncoder
from streamgen.artifact.written import CHAIN_FILE, WrittenFolder
from streamgen.base.collector import collector_at_rest
from streamgen.base.errors import AccuracyWarning, CheckpointError, GenerationWarning
from streamgen.base.extras import needed
from streamgen.base.files import read_file
from streamgen.base.progress import After, Progress, step, told
from streamgen.base.turns import one_at_a_time
from streamgen.base.warn import warn
from streamgen.compiler.budget import budget_of, is_small
from streamgen.compiler.config import CompileConfig, checked_config
from streamgen.compiler.emit import Design, emit, place_program
from streamgen.compiler.explore.fusion import FusedGroup
from streamgen.compiler.lower import finish, on_memory
from streamgen.compiler.plan.choosing import PlannedDesign, planned
from streamgen.compiler.plan.grouping import GroupPlan, group_graph
from streamgen.compiler.plan.policy import choices, finished, limited, quantised
from streamgen.model.golden_text import GoldenModel, is_language_model, vocabulary_of
from streamgen.model.graph import Graph, Program
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import Tried
from streamgen.model.graph.storage import load_program
from streamgen.model.nests import Interface, read_interface
from streamgen.observe.report import Notes
from streamgen.observe.summary import notes_of
from streamgen.runtime.chain import Chain
from streamgen.text.generation import generation_of, settings_of
from streamgen.text.sentences import SENTENCES, SentenceTokenizer, is_sentence_encoder
from streamgen.text.stored import MODEL, Text
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    import torch


@overload
def compile(
    model: str | Path,
    example_inputs: None = None,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    after: After | None = None,
) -> LanguageModel: ...


@overload
def compile(
    model: "torch.nn.Module | LogicalGraph",
    example_inputs: Any = None,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    after: After | None = None,
    text: None = None,
) -> Accelerator: ...


@overload
def compile(
    model: "torch.nn.Module",
    example_inputs: Any,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    after: After | None = None,
    text: int | str,
) -> LanguageModel: ...


@one_at_a_time
def compile(
    model: "torch.nn.Module | LogicalGraph | str | Path",
    example_inputs: Any = None,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    after: After | None = None,
    text: int | str | None = None,
) -> Accelerator:
    """Compile a model to an `Accelerator`, a language model to a `LanguageModel`, or an encoder of sentences
    to a `SentenceEncoder`.

    model: a torch module in eval mode, a GGUF file, a folder of safetensors, or a logical graph. A folder of
    sentence-transformers is an encoder of sentences, for texts of up to `max_tokens` tokens; its weights
    become "w8" by default. A folder that names a class of transformers without texts to generate, such as a
    classifier, is that module.
    example_inputs: one tensor for each input of a module, or a dict of its keywords, which `run` then takes.
    All dimensions except the last are tokens; if the module flattens its inputs, fewer are. Models of
    transformers that take ids need none. Your own language model, which maps ids [1, T], [T] or [T, 1] to
    logits, needs none either. Give the ids and further arguments of your own model as the example if it takes
    more than ids. config: budgets, formats and fixed factors. tokenizer: tokenizer of a language model; by
    default the tokenizer of the file or folder. progress: called with each step; by default steps go to
    standard error if it is a terminal. after: called with the result of each pass
    (`streamgen.base.progress`). text: position or name of the argument that is a text, if the module writes
    it about its other arguments, the source. The result is then a `LanguageModel` with an `encoder`, two
    designs of which each may take the whole board.

    Raises UnsupportedOperationError with all unsupported operations, their module paths and source lines;
    ImportMismatchError if the imported graph and the module differ; CheckpointError for an unusable file;
    GraphError for sizes that cannot be tiled; BudgetError if the design exceeds a budget; TypeError and
    ValueError for bad inputs or weights.
    """
    show = after or (lambda name, result: None)
    with told(progress) as tell, collector_at_rest():
        asked = checked_config(config)
        if text is not None:
            return _of_source(model, example_inputs, text, asked, tokenizer, tell, show)
        read = _quantised(model, example_inputs, asked, tokenizer, tell, show)
        _warn_of_settings(read.text)
        return _compiled(read, asked, tell, show)


def _compiled(read: "_Read", asked: CompileConfig, tell: Progress, show: After) -> Accelerator:
    """The steps of `compile` from the plan on. asked: the configuration of the user."""
    tell(step(3, _STEPS, "planning the design"))

    def build(design: PlannedDesign) -> list[Group]:
        show("plan", design.plan)
        several = len(design.parts)
        return [
            _built(part, _of_group(tell, number, several), show)
            for number, part in enumerate(design.parts, 1)
        ]

    design, groups = planned(read.plain, read.graph, asked, read.config, read.longest, build)
    if read.text is not None:
        return LanguageModel(groups[0], design.config, read.text, model=design.graph, plan=design.plan)
    tensors = design.parts[0].derivation.tensors
    inputs, outputs = (value.name for value in read.graph.inputs), read.graph.outputs
    names = ([tensors[name] for name in values] for values in (inputs, outputs))
    chain = _chain(design.config.name, groups, *names)
    interface = read.interface and read.interface.renamed(tensors)
    if read.sentences is not None:
        return SentenceEncoder(groups, chain, interface, read.sentences, plan=design.plan)
    return Accelerator(groups, chain, interface, plan=design.plan)


def _of_source(
    model: Any,
    example_inputs: Any,
    text: int | str,
    asked: CompileConfig,
    tokenizer: Tokenizer | None,
    tell: Progress,
    show: After,
) -> LanguageModel:
    """`compile` of a module that writes a text about a source: a language model and its encoder."""
    if isinstance(model, (str, Path, LogicalGraph)):
        raise TypeError(f"text is {text!r}; only a torch module has an argument that is a text")
    with needed("compiling a model"):
        from streamgen.model import frontend  # torch takes seconds to load

        tell(step(1, _STEPS, "exporting the module"))
        with frontend.checking(asked.check_import):
            parts = frontend.import_text_of_source(model, example_inputs, text, asked.context)
    read = _quantised(parts.text, None, asked, tokenizer, tell, show)
    writer = _compiled(read, asked, tell, show)
    assert isinstance(writer, LanguageModel)
    whole = 1 if parts.source.whole else parts.text.source  # rows of the encoder's runs
    own = replace(
        asked,
        name=f"{asked.name}_{ENCODER}",
        max_tokens=whole,
        goal="small" if asked.goal == "small" else None,
        context=None,
        attention_lanes=None,  # of the text, as the next one
        cache_channels=None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # the text has said it, with the same weights
        encoder = _quantised(parts.source.graph, None, own, None, tell, show)
    writer.encoder = _compiled(
        encoder._replace(interface=frontend.interface_of(parts.source)), own, tell, show
    )
    return writer


@one_at_a_time
def golden_model(
    model: "torch.nn.Module | LogicalGraph | str | Path",
    example_inputs: Any = None,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    after: After | None = None,
) -> GoldenModel:
    """The golden model of the language model that `compile` makes from the same arguments. It gives the same
    bits without hardware, and takes only the time to read and quantise the model. Raises the errors of
    `compile`, and TypeError for a model that is not a language model."""
    show = after or (lambda name, result: None)
    with told(progress) as tell, collector_at_rest():
        asked = checked_config(config)
        read = _quantised(model, example_inputs, asked, None, tell, show)
    if read.text is None:
        raise TypeError("the model is not a language model, which takes ids and returns logits")
    given = asked.context is not None or is_small(read.graph, asked)
    return GoldenModel(read.graph if given else replace(read.graph, context=read.longest))


@one_at_a_time
def golden_encoder(
    model: str | Path, config: CompileConfig | None = None, progress: Progress | None = None
) -> GoldenEncoder:
    """The golden model of the encoder of sentences that `compile` makes from the same arguments. It gives the
    same bits without hardware. Raises the errors of `compile`, and TypeError for another model."""
    if not is_sentence_encoder(model):
        raise TypeError(f"{model} is no encoder of sentences: a folder that sentence-transformers wrote")
    with told(progress) as tell, collector_at_rest():
        read = _quantised(model, None, checked_config(config), None, tell, lambda name, result: None)
    assert read.interface is not None and read.sentences is not None
    return GoldenEncoder(read.graph, read.interface, read.sentences)


@one_at_a_time
def assemble(graph: Graph, config: CompileConfig | None = None) -> Accelerator:
    """Build an accelerator from a graph of kernels that `GraphBuilder` made. Forks, converters and FIFO
    depths are added. Only the fields name, board, converter_bits, clock_mhz and sizing of `config` have an
    effect. Raises GraphError for a graph that breaks a law, and BudgetError if the converters of a single
    kernel exceed the budget."""
    if not isinstance(graph, Graph):
        raise TypeError(f"graph is {type(graph).__name__}; the result of GraphBuilder.build() is needed")
    config = checked_config(config, name=graph.name)
    groups = []
    budget = budget_of(config)
    for part, fused in group_graph(on_memory(graph, budget.memory), budget):
        named = replace(budget, name=part.name)
        place = partial(place_program, budget=named)
        program, cycles = finish(partial(_whole, part), 1, 1, config.sizing, place=place)
        fixed = Program(program.graph, regions=program.regions)
        emitted = emit(fixed, named, max_tokens=1)
        groups.append(_group(fixed, emitted, _notes(fused, emitted, {1: cycles[0]})))
    inputs, outputs = ([t.name for t in graph.tensors if t.role == role] for role in ("input", "output"))
    return Accelerator(groups, _chain(config.name, groups, inputs, outputs))


def load(folder: str | Path, trust: Collection[str] = (), *, changed_files: bool = False) -> Accelerator:
    """Load an accelerator that `Accelerator.write` wrote.

    trust: packages whose kernels and operations the folder may use. Those of other packages are not imported,
    because a folder must not decide which code runs. changed_files: accept files that have changed since they
    were written. Verilog that contains more than hardware is never run.

    Raises ValueError or GraphError for a folder without a valid accelerator or with kernels of packages that
    are not trusted, and CheckpointError for changed files. The operations of a language model are checked
    when the model is first read. A GenerationWarning names settings of a language model's texts that are not
    applied.
    """
    if isinstance(trust, str):
        raise TypeError(f"trust is {trust!r}; names of packages are needed, as in ({trust!r},)")
    if not isinstance(folder, str | Path):
        raise TypeError(f"folder is {folder!r}; a path is needed")
    place = Path(folder).resolve()
    if (place / MODEL).exists():
        accelerator: Accelerator = LanguageModel.load(place, trust, changed_files=changed_files)
    elif (place / GRAPH).exists():
        raise ValueError(f"{place} is the folder of a language model, but it has no {MODEL}; write it again")
    else:
        accelerator = _loaded(place, trust, changed_files)
    if (place / GRAPH).exists() and (place / ENCODER).is_dir():
        assert isinstance(accelerator, LanguageModel)
        accelerator.encoder = load(place / ENCODER, trust, changed_files=changed_files)
    _ = accelerator.inputs  # reads the manifests
    accelerator.require_whole()
    _warn_of_settings(getattr(accelerator, "text", None))
    return accelerator


def _loaded(place: Path, trust: Collection[str], changed_files: bool) -> Accelerator:
    """The accelerator of a folder that is not that of a language model."""
    chain = Chain.read(place) if (place / CHAIN_FILE).exists() else None
    places = [place] if chain is None else [chain.place(place, name) for name in chain.folders]
    parts = [WrittenFolder.read(part, changed=changed_files) for part in places]
    groups = [
        _group(load_program(part.path, trust, part.content), None, Notes.read(part.path, part.content))
        for part in parts
    ]
    interface = read_interface(place, parts[0].content if chain is None else None)
    given: dict[str, Any] = {"folder": place, "changed_files": changed_files}
    if (place / SENTENCES).exists():
        tokenizer = SentenceTokenizer.read_written(
            partial(read_file, place) if chain is not None else parts[0].content
        )
        return SentenceEncoder(groups, chain, interface, tokenizer, **given)
    return Accelerator(groups, chain, interface, **given)


class _Read(NamedTuple):
    """A model that was read. plain, graph: before and after quantisation. config: with the context and the
    tokens of a pass of the graph. interface: nesting of arguments and results. text: tokenizer and settings
    of a language model. longest: the model's own context. sentences: tokenizer of an encoder of sentences."""

    plain: LogicalGraph
    graph: LogicalGraph
    config: CompileConfig
    interface: Interface | None
    text: Text | None
    longest: int
    sentences: SentenceTokenizer | None


def _quantised(
    model: Any,
    example_inputs: Any,
    config: CompileConfig,
    tokenizer: Tokenizer | None,
    tell: Progress,
    show: After,
) -> _Read:
    """The first two steps of `compile`."""
    sentences = None
    if is_sentence_encoder(model):
        sentences = SentenceTokenizer.of_folder(Path(model), config.size("max_tokens"))
        config = replace(config, weights=config.weights or "w8")  # 4 bits without calibration lose meaning
    graph, interface = _imported(model, example_inputs, config, tell)
    language, longest = is_language_model(graph), graph.context
    text = _text(model, tokenizer, vocabulary_of(graph)) if language else None
    config, graph = limited(graph, config)
    show("import", graph)
    _warn_of_rounding(graph, config, language)
    tell(step(2, _STEPS, "quantising the weights"))
    plain, graph = graph, quantised(graph, config)
    show("quantise", graph)
    return _Read(plain, graph, config, interface, text, longest, sentences)


def _imported(
    model: Any, example_inputs: Any, config: CompileConfig, tell: Progress
) -> tuple[LogicalGraph, Interface | None]:
    """The logical graph of a model, and the nesting of its arguments and results."""
    if isinstance(model, LogicalGraph):
        return model, None
    with needed("compiling a model"):
        from streamgen.model import frontend  # torch takes seconds to load

        tokens = config.size("max_tokens")
        with frontend.checking(config.check_import):
            if isinstance(model, (str, Path)):
                tell(step(1, _STEPS, "reading the checkpoint"))
                if is_sentence_encoder(model):
                    return frontend.import_encoder(model, tokens)
                read = frontend.import_pretrained(model, example_inputs, tokens, config.context)
                return read or (frontend.load_decoder(model, config.context), None)
            tell(step(1, _STEPS, "exporting the module"))
            return frontend.import_any(model, example_inputs, tokens, config.context)


def _warn_of_rounding(graph: LogicalGraph, config: CompileConfig, language: bool) -> None:
    """Issue an AccuracyWarning if float weights become 4-bit codes without calibration."""
    numbers, rounded, count = config.numbers(language), 0, 0
    for path, matmul in graph.matmuls():
        count += 1
        rounded += matmul.is_fitted(numbers, path)
    if rounded:
        warn(
            f"{rounded} of {count} matmuls have float weights, which are rounded to 4 bits. This raised the "
            "perplexity of two small language models by 50 % (SmolLM2-135M) and 90 % (Gemma 3 270M). "
            "CompileConfig.weights='w8' costs almost nothing. streamgen.model.calibration rounds to 4 bits "
            "with less loss (6 % and 10 %), or to a mix of 4 and 8 bits",
            AccuracyWarning,
        )


def _warn_of_settings(text: Text | None) -> None:
    """Issue a GenerationWarning if a checkpoint has settings of generation that are not applied."""
    if text is not None and text.notice is not None:
        warn(text.notice, GenerationWarning)


_STEPS = 8  # steps of a compilation in progress messages


def _of_group(tell: Progress, number: int, groups: int) -> Progress:
    """Add the number of the group to progress messages if there are several groups."""
    return tell if groups == 1 else lambda message: tell(f"{message} (group {number} of {groups})")


def _built(part: GroupPlan, tell: Progress, show: After) -> Group:
    """Do the steps from the plan on for one group."""
    budget, binding = part.budget, part.derivation
    tell(step(4, _STEPS, f"{budget.name}: phases and kernels"))
    reasons = choices(binding, part.model)
    tried = binding.plan.own.tried if binding.plan.own else ()
    show("explore", "\n".join(reasons))
    show("schedule", binding.schedule)
    show("bind", binding.binding)
    show("steer", binding.largest)
    steps = {"converters": 5, "placement": 6, "timing of phases": 7, "FIFO depths": 7, "Verilog": 8}
    next_of = {"forks": "converters", "converters": "placement"}

    def passed(name: str, result: Any) -> None:
        if (following := next_of.get(name)) is not None:
            tell(step(steps[following], _STEPS, f"{budget.name}: {following}"))
        show(name, result)

    def counted(stage: str, done: int, goal: int) -> None:
        tell(step(steps[stage], _STEPS, f"{budget.name}: {stage}, {done} of {goal}"))

    place = partial(place_program, budget=budget)
    program, cycles = finished(binding, part.model, budget.sizing, place, passed, counted)
    tell(step(8, _STEPS, f"{budget.name}: Verilog"))
    show("emit", design := emit(program, budget, budget.max_tokens, counted))
    if part.fused is not None:
        return _group(program, design, _notes(part.fused, design, cycles, reasons, tried))
    ended = "phases that share hardware are one group" if binding.plan.columns else "one phase after another"
    known = {"units": binding.phases, "ended": ended, "converter_budget": None, "tried": tried}
    return _group(program, design, notes_of(design, **known, choices=reasons, scheduled_cycles=cycles))


def _text(model: Any, tokenizer: Tokenizer | None, vocabulary: int) -> Text:
    """Vocabulary, tokenizer and settings of a language model. If a file has a tokenizer of an unknown kind,
    the tokenizer is missing and the reason is kept. Raises CheckpointError for a tokenizer of another
    vocabulary."""
    if not isinstance(model, (str, Path)):
        fields: dict[str, Any] = getattr(getattr(model, "generation_config", None), "to_dict", dict)()
        return Text(vocabulary=vocabulary, tokenizer=tokenizer, settings=settings_of(fields))
    settings: Mapping[str, Any] = {}
    try:
        settings = generation_of(model).settings
        chosen = load_tokenizer(model) if tokenizer is None else tokenizer
    except CheckpointError as error:
        if tokenizer is not None:
            raise
        return Text(vocabulary=vocabulary, tokenizer=None, missing=str(error), settings=settings)
    try:
        return Text(vocabulary=vocabulary, tokenizer=chosen, settings=settings)
    except ValueError as error:
        if tokenizer is not None:
            raise
        raise CheckpointError(f"{model}: {error}") from error


def _whole(graph: Graph, tiles: int, position: int) -> Graph:
    """The only graph of a family."""
    return graph


def _group(program: Program, design: Design | None, notes: Notes) -> Group:
    return Group(lambda: program, notes, design)


def _notes(
    fused: FusedGroup,
    design: Design,
    cycles: Mapping[int, int],
    choices: tuple[str, ...] = (),
    tried: tuple[Tried, ...] = (),
) -> Notes:
    return notes_of(
        design,
        units=fused.units,
        ended=fused.ended,
        converter_budget=fused.budget,
        choices=choices,
        scheduled_cycles=cycles,
        tried=tried,
    )


def _chain(name: str, groups: Sequence[Group], inputs: Iterable[str], outputs: Iterable[str]) -> Chain | None:
    """The order of several groups; None for a single group."""
    if len(groups) == 1:
        return None
    folders = tuple(f"group_{i}" for i in range(len(groups)))
    return Chain(name=name, folders=folders, inputs=tuple(inputs), outputs=tuple(outputs))
