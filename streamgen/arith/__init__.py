"""Floating-point arithmetic: formats, and pipelined units that take operands every enabled cycle."""

from streamgen.arith.add import Add, AddParams
from streamgen.arith.compare import Compare, CompareParams, Maximum, MaximumParams, Order
from streamgen.arith.composed import (
    Gated,
    GatedParams,
    ProductSum,
    ProductSumParams,
    SoftCap,
    SoftCapParams,
)
from streamgen.arith.convert import Convert, ConvertParams, FloatToInt, FloatToIntParams
from streamgen.arith.divide import Divide, DivideParams
from streamgen.arith.dsp import Dsp, DspParams
from streamgen.arith.exp import Exp, ExpParams
from streamgen.arith.format import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.arith.integer import IntToFloat, IntToFloatParams
from streamgen.arith.multiply import Multiply, MultiplyParams
from streamgen.arith.multiply_add import MultiplyAdd, MultiplyAddParams
from streamgen.arith.reciprocal import Reciprocal, ReciprocalParams
from streamgen.arith.relu import Relu, ReluParams
from streamgen.arith.saturating import Gelu, GeluParams, Saturating, SaturatingParams
from streamgen.arith.scale import ScaleAccumulator, ScaleAccumulatorParams
from streamgen.arith.scaled_integer import ScaledInteger, ScaledIntegerParams
from streamgen.arith.sigmoid import Sigmoid, SigmoidParams
from streamgen.arith.square_root import SquareRoot, SquareRootParams

__all__ = [
    "BFLOAT16",
    "F24",
    "FLOAT16",
    "FLOAT32",
    "Add",
    "AddParams",
    "Compare",
    "CompareParams",
    "Convert",
    "ConvertParams",
    "Divide",
    "DivideParams",
    "Dsp",
    "DspParams",
    "Exp",
    "ExpParams",
    "Float",
    "FloatToInt",
    "FloatToIntParams",
    "Gated",
    "GatedParams",
    "Gelu",
    "GeluParams",
    "IntToFloat",
    "IntToFloatParams",
    "Maximum",
    "MaximumParams",
    "Multiply",
    "MultiplyAdd",
    "MultiplyAddParams",
    "MultiplyParams",
    "Order",
    "ProductSum",
    "ProductSumParams",
    "Reciprocal",
    "ReciprocalParams",
    "Relu",
    "ReluParams",
    "Saturating",
    "SaturatingParams",
    "ScaleAccumulator",
    "ScaleAccumulatorParams",
    "ScaledInteger",
    "ScaledIntegerParams",
    "Sigmoid",
    "SigmoidParams",
    "SoftCap",
    "SoftCapParams",
    "SquareRoot",
    "SquareRootParams",
]
