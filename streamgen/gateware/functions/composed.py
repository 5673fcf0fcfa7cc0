"""Functions that several units compute together, in a format wide enough for what lies between them."""

from collections.abc import Callable

from streamgen.gateware.arith import F24, Composed, ConvertParams, Float, UnitParams


def composed(form: Float, parts: Callable[[Composed], int]) -> UnitParams:
    """The unit in `form` that `parts` puts together of operand 0; what it returns is the result.

    Units between have the exponents of float32, and a precision of at least f24: other formats are converted
    to f24 and back.
    """
    inner = form if form.exponent_bits == F24.exponent_bits and form.precision >= F24.precision else F24
    network = Composed(inner)
    parts(network)
    if inner == form:
        return network.params
    whole = Composed(form)
    wide = whole.apply(ConvertParams(source=form, target=inner), 0)
    whole.apply(ConvertParams(source=inner, target=form), whole.apply(network.params, wide))
    return whole.params
