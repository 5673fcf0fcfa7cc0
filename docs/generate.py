"""Pages that follow from tables of the code: the command line, supported operations and models.

    python docs/generate.py

The pages are committed, so that they can be read on a forge; `tests/house/test_docs.py` compares them with
the code.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from streamgen import cli
from streamgen.cli.help import OptionGroup, grouped
from streamgen.compiler.config import CompileConfig
from streamgen.gateware.functions import FUNCTIONS
from streamgen.gateware.pointwise import POINTWISE
from streamgen.model import operations
from streamgen.model.frontend import (
    activations,
    arithmetic,
    batch_norms,
    chosen,
    decoder,
    importer,
    index_moves,
    linears,
    norms,
    pointwise,
    reductions,
    scatters,
    self_attention,
)
from streamgen.model.frontend.formulas import FORMULAS
from streamgen.model.frontend.gguf_architectures import ARCHITECTURES
from streamgen.model.frontend.gguf_file import GRIDS
from streamgen.model.frontend.plain_config import _KINDS as READ_WITHOUT_TORCH
from streamgen.model.frontend.safetensors_decoder import MODEL_TYPES as LIKE_LLAMA
from streamgen.model.operations.scalar import SCALARS
from tests.shared.transformers_encoders import SMALL
from tests.unit.model.frontend.families import BY_DISTANCE, FAMILIES, PARTS
from tests.unit.model.frontend.torch_nn import EXAMPLES, places

__all__ = ["WIDTH", "pages"]

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `python docs/generate.py`; do not edit. -->\n\n"
WIDTH = 82  # characters of a line of code that fit the column of the site

DESIGN = """\
Every command that compiles or estimates a model takes these options. From Python,
each one is a field of `CompileConfig` of the same name."""

OPERATIONS = """\
# Operations

streamgen compiles the operations on this page, and those that installed packages
[bring](../howto/operation.md). It refuses all others. The error names each refused
call with its module and its source line.

## Modules

{modules}.

## Language models

{decoders}.

## Calls of torch

`torch.export` leaves these calls in a module. Some calls compile only as a part
of an operation: a mean must be part of a norm, a mask must be part of an
attention. If torch itself takes a call apart into calls of this table, such as a
loss into sums and products, that call compiles, too.

{calls}
## Operations of a logical graph

The frontend turns calls into these operations. Each one is a file of
`streamgen/model/operations/`.

{operations}
Functions of elements:

{functions}"""

TORCH_NN = """\
# Classes of torch.nn

The table has every class of `torch.nn` that needs no convolution, pooling,
recurrence or loss. `tests/unit/model/frontend/test_torch_nn.py` compiles an example
of each, compares its graph with torch, and holds each refusal to its message.

Call `module.eval()` first. All dimensions of an input but the last are tokens. If a
module flattens its input, such as images of shape [B, 1, 28, 28], fewer dimensions
are tokens, and the rest are features. Modules in float64 and float16 compile, too:
the accelerator computes in its own formats.

{classes}
Files are those of `streamgen/model/frontend/`. Lazy classes become the others of
this list when they have run once. `Embedding` is a part of
[language models](models.md).
"""

MODELS = """\
# Models

streamgen reads a model by what the model computes. A model compiles if all its
[operations](operations.md) do, whatever its name is. The lists on this page say
which families are tested.

## Families

Tests compare these families of transformers with eager torch, in small sizes,
with random weights: {families}.

In these families, tests also rotate a part of each head only:

{rotating}
Attention scores of these families have a bias by distance (ALiBi): {by_distance}.

SmolLM2-135M and Gemma 3 270M run with their own weights. Another test tries
every causal class of transformers. Each class is either right or refused, and
the refusal names the missing part.

## Encoders and classifiers

Models of transformers that generate no text compile like modules of your own, as
objects and as folders. Tests compare these classes with eager torch:
{encoders}.

Models whose attention scores have a bias by position hold for the number of tokens of
their example alone, as MPNet and T5's encoder do. DeBERTa with relative positions is
refused. See [encoders and classifiers](../howto/encoders.md).

## GGUF files

{architectures}
Tensors of the kinds {grids} keep their 4-bit codes. Other quantised tensors
become 8-bit codes.

## Folders of safetensors

Folders of these model types need no other package: {llama}. Folders of all
other families need `pip install 'streamgen[models]'`. Weights that GPTQ or AWQ
has packed in 4 bits keep their codes. streamgen refuses folders that name code
of their own (`auto_map`).

## config.json alone

`streamgen estimate` takes a config.json without weights. It reads these model
types without torch: {plain}. It traces all other types, which takes longer.
"""


def pages() -> dict[Path, str]:
    """The text of each generated page, by its path."""
    return {
        DOCS / "cli.md": NOTE + _command_line(),
        DOCS / "supported/operations.md": NOTE + _operations(),
        DOCS / "supported/models.md": NOTE + _models(),
        DOCS / "supported/torch_nn.md": NOTE + _torch_nn(),
    }


def _command_line() -> str:
    group = cli.streamgen
    lines = ["# Command line", "", *_paragraphs(group), *_options(group.params)]
    for name, command in sorted(group.commands.items()):
        usage = command.get_usage(
            click.Context(command, info_name=f"streamgen {name}")
        )
        lines += [
            f"## streamgen {name}",
            "",
            *_code([usage.removeprefix("Usage: ")]),
        ]
        parts = [*grouped(command)]
        lines += [
            *_paragraphs(command),
            *_options(
                one
                for group, some in parts
                if not _of_design(group)
                for one in some
            ),
        ]
        if any(_of_design(group) for group, _ in parts):
            lines += [
                "It also takes the options of a design, at the end of this page.",
                "",
            ]
    lines += [
        "## Options of a design",
        "",
        DESIGN,
        "",
    ]
    for part, options in grouped(group.commands["compile"]):
        if _of_design(part):
            lines += [
                f"### {part.title}",
                "",
                *([part.text, ""] if part.text else []),
                *_options(options),
            ]
    return "\n".join(lines).rstrip() + "\n"


def _paragraphs(command: click.Command) -> Iterator[str]:
    """The help of a command: its paragraphs as text, those that keep their lines as code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        head, _, rest = paragraph.partition("\n")
        yield from (
            _code(rest.splitlines())
            if head.strip() == "\b"
            else [" ".join(paragraph.split()), ""]
        )


def _of_design(group: OptionGroup) -> bool:
    """Whether all options of a group are fields of `CompileConfig`."""
    return {*group.names} <= {
        field.name for field in fields(CompileConfig)
    } and bool(group.names)


def _options(options: Iterable[click.Parameter]) -> Iterator[str]:
    context = click.Context(cli.streamgen)
    rows = [found for one in options if (found := one.get_help_record(context))]
    if rows:
        yield _table(
            ("option", "meaning"),
            ((f"`{_cell(names)}`", _cell(text)) for names, text in rows),
        )


def _operations() -> str:
    calls = {
        "products with weights": linears.CALLS,
        "elementwise": [*arithmetic.CALLS, *activations.CALLS, *pointwise.CALLS],
        "norms": [*norms.CALLS, *batch_norms.CALLS],
        "attention and softmax": self_attention.CALLS,
        "reductions and products of values": reductions.CALLS,
        "formulas of other calls": FORMULAS.keys() - chosen.FORMULAS.keys(),
        "elements at places of run time": chosen.FORMULAS,
        "sums at constant places": scatters.CALLS,
        "moves with numbers": index_moves.CALLS,
        "moves, copies and casts": importer.MOVED,
    }
    functions = {
        "of one value": FUNCTIONS,
        "of a value and a number": SCALARS,
        "of two values": operations.BINARY_OPERATIONS,
        "in expressions, beside those of one value": [
            name for name in POINTWISE if name not in FUNCTIONS
        ],
    }
    classes = ((name, getattr(operations, name)) for name in operations.__all__)
    kinds = (
        (f"`{name}`", _first_of(kind.__module__))
        for name, kind in classes
        if inspect.isclass(kind)
    )
    return OPERATIONS.format(
        modules=importer.SUPPORTED,
        decoders=decoder.SUPPORTED[:1].upper() + decoder.SUPPORTED[1:],
        calls=_table(
            ("kind", "calls"),
            ((kind, _listed(_calls(table))) for kind, table in calls.items()),
        ),
        operations=_table(("operation", "meaning"), kinds),
        functions=_table(
            ("function", "names"),
            ((kind, _listed(names)) for kind, names in functions.items()),
        ),
    )


def _torch_nn() -> str:
    rows = (
        (
            f"`{name}`",
            "refused" if example.refused is not None else "compiles",
            ", ".join(f"`{file}.py`" for file in places(example)),
            example.note or (f"`{example.refused}`" if example.refused else ""),
        )
        for name, example in EXAMPLES.items()
    )
    return TORCH_NN.format(
        classes=_table(("class", "verdict", "read in", "note"), rows)
    )


def _models() -> str:
    rotating = (
        (name, f"{100 * part:g} % of each head")
        for name, (part, _, _) in sorted(PARTS.items())
    )
    read = {"llama": "streamgen's own reader"} | {
        name: f"transformers' `{kind}`"
        for name, (kind, _) in ARCHITECTURES.items()
    }
    return MODELS.format(
        families=", ".join(sorted(FAMILIES)),
        by_distance=", ".join(sorted(BY_DISTANCE)),
        encoders=_listed(sorted(kind for kind, _, _ in SMALL.values())),
        rotating=_table(("family", "rotates"), rotating),
        architectures=_table(("architecture", "read by"), sorted(read.items())),
        grids=", ".join(sorted(kind.name for kind in GRIDS)),
        llama=_listed(sorted(LIKE_LLAMA)),
        plain=_listed(sorted([*READ_WITHOUT_TORCH, *LIKE_LLAMA])),
    )


def _calls(table: Iterable[Any]) -> list[str]:
    """Names of calls, without overloads, spellings that work in place, and Python's own."""
    names = {
        str(call).removeprefix("aten.").split(".")[0]
        for call in table
        if "aten." in str(call)
    }
    return sorted(
        name for name in names if not (name.endswith("_") and name[:-1] in names)
    )


def _first_of(module: str) -> str:
    """The first paragraph of a module's docstring."""
    return _cell((sys.modules[module].__doc__ or "").partition("\n\n")[0])


def _code(lines: Iterable[str]) -> Iterator[str]:
    yield from [
        "```text",
        *(part for line in lines for part in _fitting(line)),
        "```",
        "",
    ]


def _fitting(line: str) -> Iterator[str]:
    """A line in the column: what is said of a command stands above it, a long command is continued."""
    indent = line[: len(line) - len(line.lstrip())]
    if parted := re.fullmatch(r"\s*(streamgen .*?)\s{2,}(.*)", line):
        yield f"{indent}# {parted[2]}"
        line = indent + parted[1]
    if len(line) <= WIDTH:
        yield line
        return
    is_command = line.lstrip().startswith("streamgen ")
    parts = textwrap.wrap(
        line,
        WIDTH - 2,
        subsequent_indent=indent + "    " * is_command,
        break_on_hyphens=False,
    )
    yield from (part + " \\" * is_command for part in parts[:-1])
    yield parts[-1]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(
        f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows)
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"written: {path}")
