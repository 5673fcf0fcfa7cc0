"""From torch modules and checkpoints to logical graphs; the only part of streamgen that imports torch."""

from streamgen.frontend.any_module import import_any
from streamgen.frontend.checkpoint import load_decoder
from streamgen.frontend.decoder import import_decoder
from streamgen.frontend.export import Imported, Structure, import_module, import_structured
from streamgen.frontend.gguf import FeedForward, default_checkpoint, load_feed_forward
from streamgen.frontend.shapes import shapes_of

__all__ = [
    "FeedForward",
    "Imported",
    "Structure",
    "default_checkpoint",
    "import_any",
    "import_decoder",
    "import_module",
    "import_structured",
    "load_decoder",
    "load_feed_forward",
    "shapes_of",
]
