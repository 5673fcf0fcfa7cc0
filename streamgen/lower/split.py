"""Parts of a logical graph: each a logical graph of its own."""

from collections.abc import Collection

from streamgen.graph.ops import Constant, LogicalGraph, Value

__all__ = ["sub_network"]


def sub_network(network: LogicalGraph, members: Collection[str]) -> LogicalGraph:
    """The graph of the operations named, in their order, with the constants that they read.

    Its inputs are what they read and do not make, inputs of the whole first; its outputs the results of the
    whole that they make, then what other operations read of them.
    """
    operations = [operation for operation in network.operations if operation.name in members]
    read = {name for operation in operations for name in operation.inputs}
    constants = {o.name for o in network.operations if isinstance(o.op, Constant) and o.name in read}
    elsewhere = {name for o in network.operations if o.name not in members for name in o.inputs}
    outside = [Value(o.name, o.features) for o in network.operations if o.name in read - constants]
    made = [operation.name for operation in operations]
    results = [name for name in network.outputs if name in made]
    return LogicalGraph(
        inputs=(
            *(value for value in network.inputs if value.name in read),
            *(value for value in outside if value.name not in made),
        ),
        operations=tuple(o for o in network.operations if o.name in members or o.name in constants),
        outputs=(*results, *(name for name in made if name in elsewhere and name not in results)),
    )
