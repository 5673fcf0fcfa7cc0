"""The functions of one variable: a file each, which says all there is to say of it (`Function`).

Kernels, operations, importers, documentation and tests go over `FUNCTIONS`. A new function is a file here
that defines `FUNCTION`, and its name in the list below.
"""

from importlib import import_module

from streamgen.gateware.functions.function import ErrorBound, Function

__all__ = ["CONFIGURED", "FUNCTIONS", "TITLES", "ErrorBound", "Function"]

_NAMES = (
    "relu",
    "sigmoid",
    "silu",
    "tanh",
    "gelu",
    "gelu_tanh",
    "softplus",
    "elu",
    "hardswish",
    "hardsigmoid",
    "selu",
    "mish",
    "logsigmoid",
    "softsign",
    "tanhshrink",
    "exp",
    "log",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp2",
    "expm1",
    "log1p",
    "erf",
    "erfc",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "asin",
    "acos",
    "acosh",
    "atanh",
    "sin",
    "cos",
    "tan",
)
FUNCTIONS: dict[str, Function] = {
    name: import_module(f"streamgen.gateware.functions.{name}").FUNCTION for name in _NAMES
}
CONFIGURED = {alias: name for name, function in FUNCTIONS.items() for alias in function.configuration}
"""Names of functions by the names that configurations give them."""
TITLES = ", ".join(dict.fromkeys(function.title for function in FUNCTIONS.values()))
"""The functions, as a message lists them."""
