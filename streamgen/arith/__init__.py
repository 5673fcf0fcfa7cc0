"""Floating-point arithmetic: formats, and pipelined units that take operands every enabled cycle."""

from streamgen.arith.add import Add, AddParams
from streamgen.arith.format import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.arith.integer import IntToFloat, IntToFloatParams
from streamgen.arith.multiply import Multiply, MultiplyParams
from streamgen.arith.relu import Relu, ReluParams
from streamgen.arith.scale import ScaleAccumulator, ScaleAccumulatorParams
from streamgen.arith.sigmoid import Sigmoid, SigmoidParams

__all__ = [
    "BFLOAT16",
    "F24",
    "FLOAT16",
    "FLOAT32",
    "Add",
    "AddParams",
    "Float",
    "IntToFloat",
    "IntToFloatParams",
    "Multiply",
    "MultiplyParams",
    "Relu",
    "ReluParams",
    "ScaleAccumulator",
    "ScaleAccumulatorParams",
    "Sigmoid",
    "SigmoidParams",
]
