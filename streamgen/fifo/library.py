"""The C code of the package, built when it is installed."""

import ctypes
from importlib.util import find_spec


def loaded(module: str) -> ctypes.CDLL:
    """The library of an extension module, by its full name."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, "the package is installed without its C code"
    return ctypes.CDLL(spec.origin)
