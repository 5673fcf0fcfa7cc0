"""Calls in parts: calls that the importer does not read, taken apart by formulas and torch's decompositions.

A call is traced by itself, on tensors without contents. Only calls that cannot be read as they are come here,
so a program whose calls can be read stays as it is.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from streamgen.model.frontend.formulas import FORMULAS
from streamgen.model.frontend.in_place import is_in_place, memory
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.trace import Unsupported, aten

MOST_PARTS = 256  # calls that one call may become


def parts_of(graph: Graph, node: Node, readable: Collection[Any]) -> tuple[list[Node], Any] | None:
    """The parts of a call in front of it in the graph, and the nest of nodes that is its result.

    The parts of a call in place are those of the call that leaves its argument as it is. None if the call has
    no parts. readable: calls that are left whole. Raises the errors of `FORMULAS`.
    """
    function: Any = _pure(node.target) if is_in_place(node) else node.target
    if not isinstance(function, torch._ops.OpOverload):
        return None
    traced = _traced(function, node, readable)
    if traced is None:
        return None
    calls = [part for part in traced.nodes if part.op not in ("placeholder", "output")]
    if len(calls) > MOST_PARTS or any(
        part.op != "call_function" or part.target == function for part in calls
    ):
        return None
    if not all(map(_made_pure, calls)):
        return None
    placeholders = traced.find_nodes(op="placeholder")
    copies: dict[Node, Node] = dict(zip(placeholders, node.all_input_nodes, strict=True))
    origin = {name: node.meta[name] for name in ("nn_module_stack", "stack_trace") if name in node.meta}
    with graph.inserting_before(node):
        for part in calls:
            copy = graph.node_copy(part, copies.__getitem__)
            copy.meta |= origin
            copies[part] = copy
    result = traced.find_nodes(op="output")[0].args[0]
    return [copies[part] for part in calls], pytree.tree_map(lambda n: copies.get(n, n), result)


def _pure(target: Any) -> Any:
    """The call that computes what a call in place leaves in its first argument; None if there is none."""
    name, _, overload = str(target).removeprefix("aten.").partition(".")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, overload, None)


def _made_pure(part: Node) -> bool:
    """Turn a part in place into its pure call, which later parts read already; False if that is impossible,
    or if other parts see the change."""
    if not is_in_place(part):
        return True
    held = memory(part)
    for other in part.graph.nodes:
        same = other.op != "output" and isinstance(other.meta["val"], torch.Tensor) and memory(other) == held
        if same and other is not part and other is not part.args[0] and other not in part.users:
            return False
    part.target = _pure(part.target)
    return part.target is not None


def _traced(function: torch._ops.OpOverload, node: Node, readable: Collection[Any]) -> Graph | None:
    """The calls that a call makes, with a placeholder for each node that it reads; None if torch has none."""
    sources = node.all_input_nodes

    def call(*tensors: torch.Tensor) -> Any:
        given = dict(zip(sources, tensors, strict=True))
        args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        return FORMULAS.get(function, function)(*args, **keywords)

    known = decomposition_table | FORMULAS
    table = {target: apart for target, apart in known.items() if target not in readable or target == function}
    values = [source.meta["val"] for source in sources]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return None
    try:
        with quiet(), torch.no_grad(), detect_fake_mode(values) or torch._subclasses.FakeTensorMode():
            return make_fx(call, decomposition_table=table)(*values).graph
    except Unsupported:
        raise
    except Exception:  # noqa: BLE001 - a decomposition may ask for contents, and documents no errors
        return None
