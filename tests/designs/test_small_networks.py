"""Small networks on their Verilog: bits of golden, near torch, in the module's own shapes and nests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import streamgen
from streamgen.compiler.config import CompileConfig
from tests.shared import networks_of_ids, own_models
from tests.shared.campaigns import sampled
from tests.shared.first_networks import NETWORKS

QUICK_NETWORKS = {"codebook", "dlrm", "experts_in_loop", "graph_network", "mixer", "tab_transformer"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NETWORKS)
def test_first_networks(name: str, tmp_path: Path) -> None:
    module, example = NETWORKS[name]()
    config = CompileConfig(name=name, max_tokens=4, channels=2, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, example, config)
    again = streamgen.load(accelerator.write(tmp_path / name))
    for batch in (3, 5):  # one pass, and two
        x = torch.randn(batch, *example.shape[1:])
        with torch.no_grad():
            wanted = module(x.clone()).numpy()
        found = again.run(x)
        assert found.tobytes() == accelerator.golden(x).tobytes()
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 0.02 * max(1, np.abs(wanted).max())
    given = accelerator.random_inputs(4, seed=1)
    assert [array.shape[1:] for array in given] == [example.shape[1:]]
    assert again.run(*given).tobytes() == accelerator.golden(*given).tobytes()
    again.close()


def _require_right(
    loaded: Any, accelerator: Any, given: Any, wanted: list[torch.Tensor], near: float
) -> None:
    """Results of a loaded design are those of the golden model, bit for bit, and near torch's."""
    computed, exact = (pytree.tree_leaves(run(*given)) for run in (loaded.run, accelerator.golden))
    for ours, bits, theirs in zip(computed, exact, wanted, strict=True):
        assert ours.tobytes() == bits.tobytes()
        assert ours.shape == tuple(theirs.shape)
        assert np.abs(ours - theirs.numpy()).max() <= near * max(1, theirs.abs().max())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["categories", "one_table", "typed_encoder", "behind"])
def test_networks_of_ids(name: str, tmp_path: Path) -> None:
    make, arguments = networks_of_ids.NETWORKS[name]
    torch.manual_seed(0)
    module = make().eval()
    config = CompileConfig(name=name, max_tokens=8, channels=2, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, arguments(5), config)
    again = streamgen.load(accelerator.write(tmp_path / name))
    for tokens in (1, 7):
        given = arguments(tokens)
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*given))
        _require_right(again, accelerator, given, wanted, 0.03)
    given = accelerator.random_inputs(4, seed=1)
    named = [accelerator.arguments.named_results(run(*given)) for run in (again.run, accelerator.golden)]
    assert accelerator.arguments.named(given).keys() == {*accelerator.arguments.names}
    assert {name: array.tobytes() for name, array in named[0].items()} == {
        name: array.tobytes() for name, array in named[1].items()
    }
    again.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sampled(own_models.NETWORKS, QUICK_NETWORKS))
def test_own_networks(name: str, tmp_path: Path) -> None:
    """Recommenders, experts, tables, graphs: the RTL is the golden model's, bit for bit, and near torch."""
    module = own_models.built(name)
    config = CompileConfig(name=name, max_tokens=4, channels=2, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, own_models.example(name, 2), config)
    again = streamgen.load(accelerator.write(tmp_path / name))
    for rows in (2, 5):  # one pass, and two
        given = own_models.example(name, rows)
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*given))
        _require_right(again, accelerator, given, wanted, 0.05)
    again.close()
