"""The passes between a graph of kernels and a graph that can be emitted."""

from streamgen.compiler.lower.builder import GraphBuilder
from streamgen.compiler.lower.memory import constant_bits, converter_bits, fifo_bits, unfused_bits
from streamgen.compiler.lower.passes import insert_converters, insert_forks, place_constants, size_fifos
from streamgen.compiler.lower.program import finish, unsized
from streamgen.compiler.lower.split import GraphParts, on_memory, sub_network

__all__ = [
    "GraphBuilder",
    "GraphParts",
    "constant_bits",
    "converter_bits",
    "fifo_bits",
    "finish",
    "insert_converters",
    "insert_forks",
    "on_memory",
    "place_constants",
    "size_fifos",
    "sub_network",
    "unfused_bits",
    "unsized",
]
