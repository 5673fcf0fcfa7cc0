"""From operations to kernels: the passes between a logical graph and a graph that can be emitted."""

from streamgen.lower.builder import GraphBuilder
from streamgen.lower.network import lower_network, quantise_weights
from streamgen.lower.passes import insert_converters, insert_forks, size_fifos
from streamgen.lower.program import Program

__all__ = [
    "GraphBuilder",
    "Program",
    "insert_converters",
    "insert_forks",
    "lower_network",
    "quantise_weights",
    "size_fifos",
]
