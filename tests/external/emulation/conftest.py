"""XRT for tests: of the machine, or fetched by `make check`. Where it is demanded, a missing one fails."""

import os

import pytest

from streamgen.base.errors import MissingToolError
from streamgen.package.emulation import Xrt, find_xrt


@pytest.fixture(scope="session")
def xrt() -> Xrt:
    """Where it is."""
    try:
        return find_xrt()
    except MissingToolError as error:
        if os.environ.get("STREAMGEN_XRT") == "required":
            pytest.fail(str(error))
        pytest.skip(str(error))
