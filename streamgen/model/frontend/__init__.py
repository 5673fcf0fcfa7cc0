"""From torch modules and checkpoints to logical graphs; the only part of streamgen that imports torch.

Names are imported when they are first used: torch takes seconds to load, and shapes of well-known kinds need
none of it.
"""

from typing import TYPE_CHECKING

from streamgen.base.extras import late_names

if TYPE_CHECKING:
    from streamgen.model.frontend.any_module import import_any, interface_of
    from streamgen.model.frontend.check_switch import checking
    from streamgen.model.frontend.checkpoint import load_decoder
    from streamgen.model.frontend.decoder import import_decoder
    from streamgen.model.frontend.default import default_checkpoint
    from streamgen.model.frontend.encoder import import_encoder
    from streamgen.model.frontend.export import import_module, import_structured
    from streamgen.model.frontend.gguf import FeedForward, load_feed_forward
    from streamgen.model.frontend.imported import Imported, Structure
    from streamgen.model.frontend.pretrained_modules import import_pretrained
    from streamgen.model.frontend.shapes import shapes_of
    from streamgen.model.frontend.text_of_source import import_text_of_source

__all__ = [
    "FeedForward",
    "Imported",
    "Structure",
    "checking",
    "default_checkpoint",
    "import_any",
    "import_decoder",
    "import_encoder",
    "import_module",
    "import_pretrained",
    "import_structured",
    "import_text_of_source",
    "interface_of",
    "load_decoder",
    "load_feed_forward",
    "shapes_of",
]

__getattr__, __dir__ = late_names(
    __name__,
    {
        "FeedForward": "gguf",
        "Imported": "imported",
        "Structure": "imported",
        "checking": "check_switch",
        "default_checkpoint": "default",
        "import_any": "any_module",
        "import_decoder": "decoder",
        "import_encoder": "encoder",
        "import_module": "export",
        "import_pretrained": "pretrained_modules",
        "import_structured": "export",
        "import_text_of_source": "text_of_source",
        "interface_of": "any_module",
        "load_decoder": "checkpoint",
        "load_feed_forward": "gguf",
        "shapes_of": "shapes",
    },
)
