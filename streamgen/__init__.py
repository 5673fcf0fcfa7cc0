"""streamgen: PyTorch models become stream-based dataflow accelerators.

    accelerator = streamgen.compile(module, example_inputs, config=streamgen.CompileConfig(max_tokens=16))
    accelerator.write("folder")            # Verilog, manifest, packed weights
    y = accelerator.run(x)                 # the written RTL, cycle by cycle
    assert (y == accelerator.golden(x)).all()

Names are imported when they are first used, so that `import streamgen.runtime` stays light.
"""

from typing import TYPE_CHECKING

from streamgen.extras import late_names

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

__getattr__, __dir__ = late_names(
    __name__,
    {
        "Accelerator": "accelerator",
        "CompileConfig": "config",
        "LanguageModel": "language_model",
        "Waves": "observe.waves",
        "assemble": "compiler",
        "compile": "compiler",
        "estimate": "estimation",
        "load": "compiler",
        "space": "search.space",
    },
)
