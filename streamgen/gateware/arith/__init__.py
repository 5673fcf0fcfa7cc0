"""Floating-point arithmetic: formats, and pipelined units that take operands every enabled cycle."""

from streamgen.gateware.arith.add import Add, AddParams
from streamgen.gateware.arith.compare import Compare, CompareParams, Maximum, MaximumParams, Order
from streamgen.gateware.arith.composed import (
    Gated,
    GatedParams,
    ProductSum,
    ProductSumParams,
    SoftCap,
    SoftCapParams,
)
from streamgen.gateware.arith.convert import Convert, ConvertParams, FloatToInt, FloatToIntParams
from streamgen.gateware.arith.divide import Divide, DivideParams
from streamgen.gateware.arith.dsp import Dsp, DspParams
from streamgen.gateware.arith.exp import Exp, ExpParams
from streamgen.gateware.arith.format import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.gateware.arith.integer import IntToFloat, IntToFloatParams
from streamgen.gateware.arith.multiply import Multiply, MultiplyParams
from streamgen.gateware.arith.multiply_add import MultiplyAdd, MultiplyAddParams
from streamgen.gateware.arith.piecewise import Piecewise, PiecewiseParams
from streamgen.gateware.arith.reciprocal import Reciprocal, ReciprocalParams
from streamgen.gateware.arith.remembered import UnitOfOne, remembered
from streamgen.gateware.arith.saturating import Saturating, SaturatingParams
from streamgen.gateware.arith.scale import ScaleAccumulator, ScaleAccumulatorParams
from streamgen.gateware.arith.scaled_integer import ScaledInteger, ScaledIntegerParams
from streamgen.gateware.arith.segments import FittedCurve
from streamgen.gateware.arith.square_root import SquareRoot, SquareRootParams

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
    "FittedCurve",
    "Float",
    "FloatToInt",
    "FloatToIntParams",
    "Gated",
    "GatedParams",
    "IntToFloat",
    "IntToFloatParams",
    "Maximum",
    "MaximumParams",
    "Multiply",
    "MultiplyAdd",
    "MultiplyAddParams",
    "MultiplyParams",
    "Order",
    "Piecewise",
    "PiecewiseParams",
    "ProductSum",
    "ProductSumParams",
    "Reciprocal",
    "ReciprocalParams",
    "Saturating",
    "SaturatingParams",
    "ScaleAccumulator",
    "ScaleAccumulatorParams",
    "ScaledInteger",
    "ScaledIntegerParams",
    "SoftCap",
    "SoftCapParams",
    "SquareRoot",
    "SquareRootParams",
    "UnitOfOne",
    "remembered",
]
