"""streamgen: PyTorch models become stream-based dataflow accelerators.

    accelerator = streamgen.compile(module, example_inputs, config=streamgen.CompileConfig(max_tokens=16))
    accelerator.write("folder")            # Verilog, manifest, packed weights
    y = accelerator.run(x)                 # the written RTL, cycle by cycle
    assert (y == accelerator.golden(x)).all()

Names are imported when they are first used, so that `import streamgen.runtime` stays light.
"""

from typing import TYPE_CHECKING

from streamgen.base.extras import late_names

if TYPE_CHECKING:
    from streamgen.api.accelerator import Accelerator
    from streamgen.api.compiling import assemble, compile, load
    from streamgen.api.estimation import estimate
    from streamgen.api.language_model import LanguageModel
    from streamgen.api.search.space import space
    from streamgen.api.sentence_encoder import SentenceEncoder
    from streamgen.compiler.config import CompileConfig
    from streamgen.observe.waves import Waves

__all__ = [
    "Accelerator",
    "CompileConfig",
    "LanguageModel",
    "SentenceEncoder",
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
        "Accelerator": "api.accelerator",
        "CompileConfig": "compiler.config",
        "LanguageModel": "api.language_model",
        "SentenceEncoder": "api.sentence_encoder",
        "Waves": "observe.waves",
        "assemble": "api.compiling",
        "compile": "api.compiling",
        "estimate": "api.estimation",
        "load": "api.compiling",
        "space": "api.search.space",
    },
)
