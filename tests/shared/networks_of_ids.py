"""Networks that take ids and are no language models: categories, token types, encoders."""

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["NETWORKS", "ids"]

Given = tuple[torch.Tensor, ...]


def ids(rows: int, *shape: int) -> torch.Tensor:
    """Ids below `rows`, the same each time, the largest among them."""
    some = torch.randint(rows, shape, generator=torch.Generator().manual_seed(1))
    some.view(-1)[-1:] = rows - 1
    return some


class Categories(nn.Module):
    """A table for each column, beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, 6) for rows in (4, 5, 9))
        self.out = nn.Linear(3 * 6 + 5, 4)

    def forward(self, kinds: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        rows = [table(kinds[:, column]) for column, table in enumerate(self.tables)]
        return self.out(torch.cat([*rows, numbers], dim=1))


class OneTable(nn.Module):
    """One table for all columns, whose rows are flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.out = nn.Linear(18, 4)

    def forward(self, kinds: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(kinds).flatten(1))


class Encoder(nn.Module):
    """Words and token types, in a dict; tokens see all of their sequence."""

    def __init__(self, classes: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16, padding_idx=0)
        self.types = nn.Embedding(2, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out = nn.Linear(16, classes)

    def forward(self, text: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        types = text.get("types")
        if types is None:
            types = torch.zeros_like(text["words"])
        return {"tags": self.out(self.layer(self.words(text["words"]) + self.types(types)))}


class Category(nn.Module):
    """A category for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 8), nn.Linear(8, 3)

    def forward(self, kind: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(kind))


class Behind(nn.Module):
    """Numbers come before the ids, which choose their factors and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.offsets = nn.Parameter(torch.randn(5, 8)), nn.Embedding(6, 8)

    def forward(self, x: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return x * self.factors[kind] + self.offsets(kind)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Given]]] = {
    "categories": (Categories, lambda n: (ids(4, n, 3), torch.randn(n, 5))),
    "one_table": (OneTable, lambda n: (ids(9, n, 3),)),
    "typed_encoder": (Encoder, lambda n: ({"words": ids(20, 2, n), "types": ids(2, 2, n)},)),  # type: ignore[dict-item]
    "encoder": (Encoder, lambda n: ({"words": ids(20, 1, n)},)),  # type: ignore[dict-item]
    "category": (Category, lambda n: (ids(7, n),)),
    "behind": (Behind, lambda n: (torch.randn(n, 8), ids(5, n))),
}
"""By name: the module, and its arguments for some tokens."""
