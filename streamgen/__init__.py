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
    from streamgen.compiler import Accelerator, assemble, compile, load
    from streamgen.config import CompileConfig, DecoderConfig
    from streamgen.decoder import DecoderAccelerator, compile_decoder, open_decoder
    from streamgen.waves import Waves

__all__ = [
    "Accelerator",
    "CompileConfig",
    "DecoderAccelerator",
    "DecoderConfig",
    "Waves",
    "assemble",
    "compile",
    "compile_decoder",
    "load",
    "open_decoder",
]

_HOMES = {
    "Accelerator": "streamgen.compiler",
    "CompileConfig": "streamgen.config",
    "DecoderAccelerator": "streamgen.decoder",
    "DecoderConfig": "streamgen.config",
    "Waves": "streamgen.waves",
    "assemble": "streamgen.compiler",
    "compile": "streamgen.compiler",
    "compile_decoder": "streamgen.decoder",
    "load": "streamgen.compiler",
    "open_decoder": "streamgen.decoder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streamgen' has no attribute {name!r}")
    with needed(f"streamgen.{name}"):
        return getattr(import_module(_HOMES[name]), name)
