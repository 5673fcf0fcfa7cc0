"""The intermediate representation: frozen graphs of kernels joined by streams."""

from streamgen.model.graph.ir import Edge, Graph, Node, Port, Tensor, kind_of
from streamgen.model.graph.program import Program, Regions, Variant
from streamgen.model.graph.verify import verify

__all__ = ["Edge", "Graph", "Node", "Port", "Program", "Regions", "Tensor", "Variant", "kind_of", "verify"]
