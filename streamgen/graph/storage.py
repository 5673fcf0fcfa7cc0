"""Programs as files, so that a written accelerator keeps its golden model.

`graph.json` holds the nodes (params once, bounds for every number of token tiles), edges and tensors,
`constants.npz` the arrays. Params are written as their class and fields; nothing is registered: a user's own
kernel is found by the name of its class when the folder is loaded, in whatever package that is installed.
"""

import dataclasses
import importlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.errors import GraphError
from streamgen.graph.ir import Edge, Graph, Node, Port, Tensor
from streamgen.graph.program import Program, Variant
from streamgen.graph.verify import verify
from streamgen.itensor import ITensor

__all__ = ["decode_value", "encode_value", "load_program", "save_program"]

_GRAPH, _CONSTANTS = "graph.json", "constants.npz"
_OF_TENSORS = ("name", "role", "node", "channel", "port", "buffer", "phase")  # as they are
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, GraphError),
)


def save_program(program: Program, folder: Path) -> None:
    """Write a program into an existing folder; the same program gives the same bytes. GraphError for one
    whose runs depend on positions: its graphs are too many to be written."""
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
        "edges": [[str(e.source), str(e.target), e.depth, e.back] for e in graph.edges],
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
    (folder / _GRAPH).write_text(json.dumps(document, indent=1) + "\n")
    with zipfile.ZipFile(folder / _CONSTANTS, "w", zipfile.ZIP_DEFLATED) as archive:
        for tensor in graph.tensors:
            if tensor.data is not None:
                # a fixed date, so that the bytes depend on nothing but the data
                with archive.open(zipfile.ZipInfo(f"{places[id(tensor)]}.npy"), "w") as file:
                    np.lib.format.write_array(file, tensor.data, allow_pickle=False)


def load_program(folder: Path) -> Program:
    """Read what `save_program` wrote. GraphError names a missing, corrupt or foreign part."""
    try:
        document = json.loads((folder / _GRAPH).read_text())
        with (folder / _CONSTANTS).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            constants = {name: archive[name] for name in archive.files}
        return _program(document, constants)
    except _UNREADABLE as error:
        raise GraphError(f"{folder} holds no readable program: {error}") from error


def _program(document: Mapping[str, Any], constants: Mapping[str, np.ndarray]) -> Program:
    params = {n["name"]: decode_value(n["params"]) for n in document["nodes"]}
    edges = tuple(Edge(_port(s), _port(t), depth, back) for s, t, depth, back in document["edges"])
    sections = tuple((phases, walks) for phases, walks in document["sections"])

    def graph(tiles: int, position: int) -> Graph:
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

    tensors: tuple[Tensor, ...] = tuple(
        Tensor(
            **{name: t[name] for name in _OF_TENSORS},
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
    largest = document["max_tiles"]
    whole = document["whole"]
    return Program(graph(largest, 0), document["token_lanes"], largest, graph, variants=variants, whole=whole)


def _port(text: str) -> Port:
    node, _, name = text.partition(".")
    return Port(node, name)


def encode_value(value: Any) -> Any:
    """Params, or a value in params or bounds, as what json can write. GraphError for anything else."""
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
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", "fields": fields}
    raise GraphError(
        f"{value!r} cannot be written: params hold numbers, strings, tuples, ITensors and such dataclasses"
    )


def decode_value(value: Any) -> Any:
    """What `encode_value` was given. GraphError when a class is not to be found."""
    if isinstance(value, list):
        return tuple(decode_value(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "itensor" in value:
        return ITensor.parse(value["itensor"])
    if "map" in value:
        return {key: decode_value(item) for key, item in value["map"].items()}
    module, _, name = value["class"].partition(":")
    try:
        found = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        written = module == "__main__" or "<locals>" in name
        advice = "define it in a module and write again" if written else "install the package that defines it"
        raise GraphError(
            f"the program uses {name} of {module}, which cannot be imported ({error}): {advice}"
        ) from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise GraphError(f"the program uses {name} of {module}, which is no Params dataclass")
    return found(**{key: decode_value(item) for key, item in value["fields"].items()})
