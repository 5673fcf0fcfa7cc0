"""SiLU, x · sigmoid(x): the sigmoid's unit with a product before its rounding."""

from functools import partial

from numpy import ndarray

from streamgen.gateware.functions.function import Function
from streamgen.gateware.functions.sigmoid import ERROR, SigmoidParams, sigmoid


def _silu(x: ndarray) -> ndarray:
    return x * sigmoid(x)


FUNCTION = Function(
    name="silu",
    title="SiLU",
    reference=_silu,
    own=partial(SigmoidParams, times_x=True),
    error=ERROR,
    gates=True,
    torch=("aten.silu.default", "aten.silu_.default"),
    configuration=("silu", "swish"),
)
