"""SiLU, x · sigmoid(x): the sigmoid's unit with a product before its rounding."""

from numpy import ndarray

from streamgen.gateware.arith import Float
from streamgen.gateware.functions.function import Function
from streamgen.gateware.functions.sigmoid import ERROR, SigmoidParams, sigmoid


def _silu(x: ndarray) -> ndarray:
    return x * sigmoid(x)


def _unit(form: Float) -> SigmoidParams:
    return SigmoidParams(form=form, times_x=True)


FUNCTION = Function(
    name="silu",
    title="SiLU",
    reference=_silu,
    own=_unit,
    error=ERROR,
    gates=True,
    torch=("aten.silu.default", "aten.silu_.default"),
    configuration=("silu", "swish"),
)
