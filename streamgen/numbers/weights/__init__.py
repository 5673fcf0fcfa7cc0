"""The formats of weights: a file each, which says all there is to say of it (`WeightFormat`).

Quantisation, kernels, estimates, configuration and tests go over `FORMATS`. A new format is a file here that
defines `FORMAT`, and its name in the list below.
"""

from importlib import import_module

from streamgen.numbers.weights.weight_format import Rounded, WeightFormat

__all__ = ["BYTES", "DEFAULT", "FORMATS", "GRID", "TITLES", "Rounded", "WeightFormat"]

_NAMES = ("w4", "mxfp4", "w8")
FORMATS: dict[str, WeightFormat] = {
    name: import_module(f"streamgen.numbers.weights.{name}").FORMAT for name in _NAMES
}
DEFAULT = FORMATS["w4"]
"""Of weights that come as floats, unless another one is asked for."""
BYTES = FORMATS["w8"]
"""Of tables, and of weights whose own quantisation no other format keeps."""
GRID = next(form for form in FORMATS.values() if form.keep is not None)
"""Of weights that come with a 4-bit grid."""
TITLES = ", ".join(f"{form.name} ({form.title})" for form in FORMATS.values())
"""The formats, as a help text lists them."""
