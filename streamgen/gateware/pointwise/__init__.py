"""Pointwise operations, and expressions of them: what one element of a result takes of the same element of
each value.

    POINTWISE    operations by name: all functions of one variable, sums, products, comparisons, choices
    Formula      an expression: operations on values, constants and earlier results
"""

from streamgen.gateware.pointwise.formula import Formula, FormulaBuilder
from streamgen.gateware.pointwise.operations import POINTWISE, Pointwise

__all__ = ["POINTWISE", "Formula", "FormulaBuilder", "Pointwise"]
