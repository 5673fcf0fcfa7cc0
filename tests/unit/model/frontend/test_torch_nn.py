"""Each class of torch.nn without convolution, pooling, recurrence or loss is right, or refused by name."""

import pytest

from tests.unit.model.frontend.torch_nn import EXAMPLES, classes, outcome


def test_every_class_has_an_example() -> None:
    assert classes() == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_classes_compile_or_are_refused_by_name(name: str) -> None:
    """The importer compares what it makes with torch."""
    refused, found = EXAMPLES[name].refused, outcome(EXAMPLES[name])
    if refused is None:
        assert not found
    else:
        assert refused in found
