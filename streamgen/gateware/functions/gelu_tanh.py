"""GELU by tanh, torch's `approximate="tanh"`: x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2."""

import math
from functools import partial

import numpy as np
from numpy import ndarray

from streamgen.gateware.functions.function import Function
from streamgen.gateware.functions.gelu import ERROR, GeluParams


def _gelu_tanh(x: ndarray) -> ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


FUNCTION = Function(
    name="gelu_tanh",
    title="GELU",
    reference=_gelu_tanh,
    own=partial(GeluParams, tanh=True),
    error=ERROR,
    gates=True,
    torch=("aten.gelu.default",),
    arguments={"approximate": "tanh"},
    configuration=("gelu_new", "gelu_pytorch_tanh"),
)
