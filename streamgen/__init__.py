"""streamgen: PyTorch models become stream-based dataflow accelerators.

    accelerator = streamgen.compile(module, example_inputs, config=streamgen.CompileConfig(max_tokens=16))
    accelerator.write("folder")            # Verilog, manifest, packed weights
    y = accelerator.run(x)                 # the written RTL, cycle by cycle
    assert (y == accelerator.golden(x)).all()

Names are imported when they are first used, so that `import streamgen.runtime` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamgen.extras import needed

if TYPE_CHECKING:
    from streamgen.accelerator import Accelerator
    from streamgen.compiler import assemble, compile, load
    from streamgen.config import CompileConfig
    from streamgen.estimation import estimate
    from streamgen.language_model import LanguageModel
    from streamgen.observe.waves import Waves
    from streamgen.search.space import space

__all__ = [
    "Accelerator",
    "CompileConfig",
    "LanguageModel",
    "Waves",
    "assemble",
    "compile",
    "estimate",
    "load",
    "space",
]

_HOMES = {
    "Accelerator": "streamgen.accelerator",
    "CompileConfig": "streamgen.config",
    "LanguageModel": "streamgen.language_model",
    "Waves": "streamgen.observe.waves",
    "assemble": "streamgen.compiler",
    "compile": "streamgen.compiler",
    "estimate": "streamgen.estimation",
    "load": "streamgen.compiler",
    "space": "streamgen.search.space",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streamgen' has no attribute {name!r}")
    with needed(f"streamgen.{name}"):
        return getattr(import_module(_HOMES[name]), name)
