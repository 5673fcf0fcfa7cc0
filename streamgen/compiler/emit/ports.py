"""Check that the ports of components match their Params before Verilog is made of them."""

from collections.abc import Mapping

from amaranth import Shape
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.base.errors import GraphError
from streamgen.contract import KernelParams, completes
from streamgen.gateware.rtl import Library
from streamgen.kernels.blackbox import BlackBox
from streamgen.model.graph import Graph


def check_components(graph: Graph) -> None:
    """Build the component of every node. Raises GraphError with the name of a node that cannot be built, or
    whose ports differ from its Params. The Verilog of a black box is also checked, alone and against the
    Verilog of the other black boxes."""
    library = Library()
    for node in graph.nodes:
        try:
            component = node.params.build()
            component._MustUse__used = True  # amaranth warns if a component is not elaborated
            for source in component.sources if isinstance(component, BlackBox) else ():
                library.add_source(*source)
        except ValueError as error:
            raise GraphError(f"node {node.name!r}: {error}") from error
        phases = [phase for phase, bounds in enumerate(node.bounds) if bounds is not None]
        inputs = {name: it.token_bits for p in phases for name, it in node.inputs(p).items()}
        outputs = {name: it.token_bits for p in phases for name, it in node.outputs(p).items()}
        if problems := port_problems(node.params, component, inputs, outputs):
            kind = type(node.params).__name__
            raise GraphError(
                "\n  ".join([f"node {node.name!r}: the ports of {kind} and its component differ:", *problems])
            )


def port_problems(
    params: KernelParams, component: wiring.Component, inputs: Mapping[str, int], outputs: Mapping[str, int]
) -> list[str]:
    """A line for each difference between Params and component. inputs, outputs: bits of a token of each port.
    The component may have more ports."""
    fields = params.descriptor_fields()
    if not fields:
        return ["i_descriptor: descriptor_fields is empty; at least one field is needed"]
    wanted = {"i_descriptor": (In, sum(field.bits for field in fields))}
    wanted |= {name: (In, bits) for name, bits in inputs.items()}
    wanted |= {name: (Out, bits) for name, bits in outputs.items()}
    problems = []
    members = component.signature.members
    if completes(params) and ("done" not in members or members["done"] != Out(1)):
        problems.append("done: the component has no such output of 1 bit; a run waits for it")
    for name, (flow, bits) in wanted.items():
        way = "input" if flow == In else "output"
        if name not in members:
            problems.append(f"{name}: the component has no such port; an {way} of {bits} bits is promised")
        elif not (members[name].is_signature and isinstance(members[name].signature, stream.Signature)):
            problems.append(f"{name}: the port of the component is not a stream")
        else:
            width = Shape.cast(members[name].signature.members["payload"].shape).width
            actual = "input" if members[name].flow == In else "output"
            if (actual, width) != (way, bits):
                problems.append(
                    f"{name}: the component has an {actual} of {width} bits; an {way} of {bits} bits is "
                    "promised"
                )
    return problems
