"""Floating-point arithmetic: formats, and pipelined units that take operands every enabled cycle."""

from streamgen.gateware.arith.add import AddParams, SubtractParams
from streamgen.gateware.arith.compare import AboveParams, CompareParams, MaximumParams, MinimumParams, Order
from streamgen.gateware.arith.composed import (
    GatedParams,
    LeakyParams,
    ProductSumParams,
    SoftCapParams,
)
from streamgen.gateware.arith.convert import ConvertParams, FloatToIntParams
from streamgen.gateware.arith.divide import DivideParams
from streamgen.gateware.arith.dsp import Dsp, DspParams
from streamgen.gateware.arith.exp import ExpParams
from streamgen.gateware.arith.format import BFLOAT16, F24, FLOAT16, FLOAT32, Float
from streamgen.gateware.arith.integer import IntToFloatParams
from streamgen.gateware.arith.multiply import MultiplyParams
from streamgen.gateware.arith.multiply_add import MultiplyAddParams
from streamgen.gateware.arith.network import Composed, NetworkParams
from streamgen.gateware.arith.piecewise import PiecewiseParams
from streamgen.gateware.arith.reciprocal import ReciprocalParams
from streamgen.gateware.arith.relations import LogicParams, PredicateParams, RelationParams, WhereParams
from streamgen.gateware.arith.remembered import remembered
from streamgen.gateware.arith.saturating import SaturatingParams
from streamgen.gateware.arith.scale import ScaleAccumulatorParams
from streamgen.gateware.arith.scaled_integer import ScaledIntegerParams
from streamgen.gateware.arith.segments import FittedCurve
from streamgen.gateware.arith.signs import SignParams
from streamgen.gateware.arith.square_root import SquareRootParams
from streamgen.gateware.arith.unit import MergedUnitParams, UnitParams
from streamgen.gateware.arith.whole import WholeParams

__all__ = [
    "BFLOAT16",
    "F24",
    "FLOAT16",
    "FLOAT32",
    "AboveParams",
    "AddParams",
    "CompareParams",
    "Composed",
    "ConvertParams",
    "DivideParams",
    "Dsp",
    "DspParams",
    "ExpParams",
    "FittedCurve",
    "Float",
    "FloatToIntParams",
    "GatedParams",
    "IntToFloatParams",
    "LeakyParams",
    "LogicParams",
    "MaximumParams",
    "MergedUnitParams",
    "MinimumParams",
    "MultiplyAddParams",
    "MultiplyParams",
    "NetworkParams",
    "Order",
    "PiecewiseParams",
    "PredicateParams",
    "ProductSumParams",
    "ReciprocalParams",
    "RelationParams",
    "SaturatingParams",
    "ScaleAccumulatorParams",
    "ScaledIntegerParams",
    "SignParams",
    "SoftCapParams",
    "SquareRootParams",
    "SubtractParams",
    "UnitParams",
    "WhereParams",
    "WholeParams",
    "remembered",
]
