"""Programs as files, so that a written accelerator keeps its golden model.

`graph.json` holds the nodes (params once, bounds for every number of token tiles), edges and tensors;
`constants.npz` holds the arrays. Params are written as their class and fields. Nothing is registered: a
user's own kernel is found by the name of its class when the folder is loaded. Finding a class imports its
module, so only classes of streamgen and of the packages that the caller trusts are looked up.
"""

import dataclasses
import importlib
import zipfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.base.files import DEFLATED_BYTES, as_text, decode, parsed, read_arrays, read_file
from streamgen.itensor import ITensor
from streamgen.model.graph.ir import Edge, Graph, Node, Port, Tensor
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.program import Program, Variant
from streamgen.model.graph.verify import verify

_GRAPH, _CONSTANTS = "graph.json", "constants.npz"
_SAFE = (__name__.partition(".")[0], "__main__")  # the latter runs already
_OF_TENSORS: Mapping[str, Any] = {
    **dict.fromkeys(("name", "role", "node", "port"), str),
    "channel": int,
    "buffer": str | None,
    "phase": int | None,
}
"""Values that are written unchanged, with their types."""
_UNREADABLE = (
    *(
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        ArithmeticError,
        GraphError,
    ),
)


def save_program(program: Program, folder: Path) -> None:
    """Write a program into an existing folder; the same program gives the same bytes. GraphError for a
    program whose runs depend on positions, because it has too many graphs."""
    if program.context:
        raise GraphError(f"program {program.graph.name!r} has runs at {program.context} positions")
    graph = program.graph
    by_tiles = [program.at(tiles).by_name for tiles in range(1, program.max_tiles + 1)]
    places = {id(tensor): f"{k}_{tensor.name}" for k, tensor in enumerate(graph.tensors)}
    document = {
        "name": graph.name,
        "token_lanes": program.token_lanes,
        "max_tiles": program.max_tiles,
        "whole": program.whole,
        "sections": [list(section) for section in graph.sections],
        "nodes": [
            {
                "name": node.name,
                "params": encode_value(node.params),
                "steps": dict(node.steps),
                "bounds": [[encode_value(b) for b in nodes[node.name].bounds] for nodes in by_tiles],
            }
            for node in graph.nodes
        ],
        "edges": [[str(e.source), str(e.target), e.depth, e.back, e.boundaries] for e in graph.edges],
        "tensors": [
            {
                **{name: getattr(t, name) for name in _OF_TENSORS},
                "shape": list(t.shape),
                "itensor": encode_value(t.itensor),
                "data": None if t.data is None else places[id(t)],
            }
            for t in graph.tensors
        ],
        "variants": {
            name: {
                "bounds": {node: encode_value(b) for node, b in variant.bounds.items()},
                "resting": sorted(map(list, variant.resting)),
            }
            for name, variant in program.variants.items()
        },
    }
    (folder / _GRAPH).write_text(as_text(document))
    large = (
        sum(tensor.data.nbytes for tensor in graph.tensors if tensor.data is not None) > DEFLATED_BYTES // 2
    )
    kind = zipfile.ZIP_STORED if large else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(folder / _CONSTANTS, "w", kind) as archive:
        for tensor in graph.tensors:
            if tensor.data is not None:
                # a fixed date, so that the bytes depend on nothing but the data
                with archive.open(zipfile.ZipInfo(f"{places[id(tensor)]}.npy"), "w") as file:
                    array = np.asarray(tensor.data)
                    late = isinstance(tensor.data, LateArray) and len(array) == 1
                    np.lib.format.write_array(file, array[0] if late else array, allow_pickle=False)


def load_program(
    folder: Path, trust: Collection[str] = (), read: Callable[[str], bytes] | None = None
) -> Program:
    """Read the program that `save_program` wrote. trust: packages whose kernels may be used, in addition to
    streamgen's. read: returns the content of a file by its name. GraphError names a missing, corrupt or
    foreign part, and packages that are not trusted."""
    content, name = read or partial(read_file, folder), _GRAPH
    try:
        document = parsed(content(_GRAPH))
        name = _CONSTANTS
        constants = read_arrays(content(_CONSTANTS))
        name = _GRAPH
        return _program(document, constants, trust)
    except _UNREADABLE as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else error
        raise GraphError(f"{folder} holds no readable program: {name}: {said}") from error


def _program(
    document: Mapping[str, Any], constants: Mapping[str, np.ndarray], trust: Collection[str]
) -> Program:
    params = {n["name"]: decode_value(n["params"], trust) for n in document["nodes"]}
    edges = tuple(Edge(_port(s), _port(t), *rest) for s, t, *rest in document["edges"])
    sections = tuple((phases, walks) for phases, walks in document["sections"])

    def graph(tiles: int, position: int) -> Graph:
        try:
            return made(tiles)
        except _UNREADABLE as error:
            raise GraphError(f"{_GRAPH} holds no graph of {tiles} tiles: {error!r}") from error

    def made(tiles: int) -> Graph:
        nodes = tuple(
            Node(
                n["name"],
                params[n["name"]],
                tuple(decode_value(b) for b in n["bounds"][tiles - 1]),
                n["steps"],
            )
            for n in document["nodes"]
        )
        return verify(Graph(document["name"], nodes, edges, tensors, sections))

    for t in document["tensors"]:
        if not isinstance(itensor := decode_value(t["itensor"]), ITensor | None):
            raise ValueError(f"the itensor of tensor {t['name']!r} is {itensor!r}")
    tensors: tuple[Tensor, ...] = tuple(
        Tensor(
            **{name: decode(kind, t[name], f"{name} of a tensor") for name, kind in _OF_TENSORS.items()},
            shape=tuple(t["shape"]),
            itensor=decode_value(t["itensor"]),
            data=None if t["data"] is None else constants[t["data"]],
        )
        for t in document["tensors"]
    )
    variants = {
        name: Variant(
            {node: decode_value(b) for node, b in v["bounds"].items()},
            frozenset((node, phase) for node, phase in v["resting"]),
        )
        for name, v in document["variants"].items()
    }
    numbers = {name: decode(int, document[name], name) for name in ("max_tiles", "token_lanes")}
    if small := [name for name, value in numbers.items() if not 1 <= value < 1 << 32]:
        raise ValueError(f"{small[0]} is {document[small[0]]}; at least 1 is needed")
    largest, lanes = numbers.values()
    whole = decode(bool, document["whole"], "whole")
    return Program(made(largest), lanes, largest, graph, variants=variants, whole=whole)


def _port(text: str) -> Port:
    node, _, name = text.partition(".")
    return Port(node, name)


def encode_value(value: Any) -> Any:
    """Params, or a value in params or bounds, as a value for json. GraphError for any other value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, ITensor):
        return {"itensor": str(value)}
    if isinstance(value, tuple):
        return [encode_value(item) for item in value]
    if isinstance(value, Mapping):
        return {"map": {key: encode_value(item) for key, item in value.items()}}
    if dataclasses.is_dataclass(value):
        fields = {f.name: encode_value(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"class": class_name(type(value)), "fields": fields}
    raise GraphError(
        f"{value!r} cannot be written: params hold numbers, strings, tuples, ITensors and such dataclasses"
    )


def decode_value(value: Any, trust: Collection[str] = ()) -> Any:
    """The value that `encode_value` was given. trust: packages, or modules, whose classes may be used in
    addition to streamgen's. GraphError if a class cannot be found or is not trusted."""
    if isinstance(value, list):
        return tuple(decode_value(item, trust) for item in value)
    if not isinstance(value, dict):
        return value
    if "itensor" in value:
        return ITensor.parse(value["itensor"])
    if "map" in value:
        return {key: decode_value(item, trust) for key, item in value["map"].items()}
    kind = trusted_class(value["class"], trust)
    module, _, name = value["class"].partition(":")
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise GraphError(f"the program uses {name} of {module}, which is no Params dataclass")
    return kind(**{key: decode_value(item, trust) for key, item in value["fields"].items()})


def class_name(kind: type) -> str:
    """The name of a class in a file."""
    return f"{kind.__module__}:{kind.__qualname__}"


def trusted_class(named: str, trust: Collection[str], subject: str = "the program") -> Any:
    """The class with a name from `class_name`. trust: packages, or modules, that may be imported in addition
    to streamgen. subject: the user of the class, for the message. GraphError if the class cannot be found or
    is not trusted."""
    module, _, name = named.partition(":")
    if not any(f"{module}.".startswith(f"{package}.") for package in (*_SAFE, *trust)):
        package = module.partition(".")[0]
        raise GraphError(
            f"{subject} uses {name} of {module}, and loading it runs that module. If you trust it "
            f"and whoever wrote the folder, name it: load(folder, trust=({package!r},)), or --trust {package}"
        )
    try:
        located = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        written = module == "__main__" or "<locals>" in name
        advice = "define it in a module and write again" if written else "install the package that defines it"
        if module.startswith(f"{_SAFE[0]}.") and not written:
            advice = "another streamgen wrote the folder; compile again"
        raise GraphError(
            f"{subject} uses {name} of {module}, which cannot be imported ({error}): {advice}"
        ) from error
    return located
