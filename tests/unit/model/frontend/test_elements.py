"""model.frontend.elements: columns of values, however a tensor of indices lies in memory."""

import pytest
import torch

from streamgen.model.frontend.elements import Elements


def test_columns_that_are_strided_in_memory(request: pytest.FixtureRequest) -> None:
    """torch warns of strided values in searchsorted, once a process; no user shall see the warning."""
    request.addfinalizer(lambda: torch.set_warn_always(False))
    torch.set_warn_always(True)
    elements = Elements(rows=4)
    elements.add("x", 3)
    y = elements.add("y", 6)
    parts = elements.parts(torch.stack((y, y), dim=1)[:, 0])
    assert [(name, columns.tolist()) for name, columns in parts] == [("y", [0, 1, 2, 3, 4, 5])]
