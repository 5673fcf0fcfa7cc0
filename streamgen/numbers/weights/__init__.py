"""The formats of weights, one file each, with the complete definition of the format (`WeightFormat`).

Quantisation, kernels, estimates, configuration and tests iterate over `FORMATS`. To add a format, add a file
that defines `FORMAT`, and its name to the list below.
"""

from importlib import import_module

from streamgen.numbers.weights.weight_format import Rounded, WeightFormat

__all__ = ["BYTES", "DEFAULT", "FORMATS", "GRID", "TITLES", "Rounded", "WeightFormat"]

_NAMES = ("w4", "mxfp4", "w8")
FORMATS: dict[str, WeightFormat] = {
    name: import_module(f"streamgen.numbers.weights.{name}").FORMAT for name in _NAMES
}
DEFAULT = FORMATS["w4"]
"""The format of floats, unless another one is requested."""
BYTES = FORMATS["w8"]
"""The format of tables, and of weights whose own quantisation no other format keeps."""
GRID = next(form for form in FORMATS.values() if form.keep is not None)
"""The format of weights that have a 4-bit grid."""
TITLES = ", ".join(f"{form.name} ({form.title})" for form in FORMATS.values())
"""The formats as a list for help texts."""
