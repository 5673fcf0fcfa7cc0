"""The language model of two layers, compiled once for all tests of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgen.api.language_model import LanguageModel
from tests.shared.decoders import tiny_accelerator


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    found = tiny_accelerator()
    yield found
    found.close()


@pytest.fixture(scope="module")
def written(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests leave it as it is."""
    return model.write(tmp_path_factory.mktemp("decoder") / "tiny")
