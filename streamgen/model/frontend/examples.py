"""Example inputs as people write them: one tensor, a sequence of arguments, or a dict of keywords."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Example:
    """The arguments of a module and its keywords, as in module(*arguments, **keywords)."""

    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> "Example":
        """From a tensor, a sequence of arguments or a mapping of keywords; TypeError for any other value."""
        if isinstance(given, torch.Tensor):
            return cls((given,))
        if isinstance(given, Mapping):
            if wrong := next((key for key in given if not isinstance(key, str)), None):
                raise TypeError(f"example_inputs have the key {wrong!r}; the names of arguments are needed")
            return cls((), dict(given))
        return cls(tuple(given))

    def positional(self, module: torch.nn.Module) -> tuple[Any, ...]:
        """All arguments in the order of the module; without the keywords if it takes them by name alone, or
        not without arguments in between. TypeError for a name that it does not take."""
        if not self.keywords:
            return self.arguments
        bound = inspect.signature(module.forward).bind(*self.arguments, **self.keywords)
        return self.arguments if bound.kwargs else bound.args
