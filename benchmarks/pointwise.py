"""Which pointwise operators of torch's core set compile: those that torch tags both `core` and `pointwise`.

Each overload is called in a module of its own, with tensors [3, 16] of numbers between 0 and 1, truth values
where it is bitwise, and numbers. The import compares what it makes with torch. Prints the share, and the
overloads that are refused.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from streamgen.model.frontend import import_module

GIVEN = {"rounding_mode": "floor", "approximate": "none", "decimals": 0}


class _Called(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        arguments, tensors, named = [], list(x), {}
        for argument in self.call._schema.arguments:
            kind = str(argument.type)
            if kind == "Tensor":
                value: Any = tensors.pop(0)
                if self.call.__name__.startswith("bitwise") or argument.name == "condition":
                    value = value > 0.5
            elif argument.name in GIVEN:
                value = GIVEN[argument.name]
            elif argument.name == "min":
                value = torch.tensor(0.25) if "Tensor" in kind else 0.25
            elif argument.has_default_value():
                continue
            else:
                value = True if self.call.__name__.startswith("bitwise") else 2
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                arguments.append(value)
        result: torch.Tensor = self.call(*arguments, **named)
        return result.float() if result.dtype == torch.bool else result


def overloads() -> Iterator[Any]:
    """Of the core set, pointwise, with a tensor among their arguments."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        for kind in getattr(packet, "overloads", list)():
            call = getattr(packet, kind)
            kinds = [str(argument.type) for argument in call._schema.arguments]
            if (
                not kind.endswith("out")
                and {torch.Tag.core, torch.Tag.pointwise} <= {*call.tags}
                and "Tensor" in kinds
            ):
                yield call


def main() -> None:
    torch.manual_seed(0)
    taken, refused = 0, []
    for call in overloads():
        count = sum(str(argument.type) == "Tensor" for argument in call._schema.arguments)
        try:
            import_module(_Called(call), tuple(torch.rand(3, 16) for _ in range(count)))
            taken += 1
        except Exception as error:  # noqa: BLE001 - whatever stops a call is printed
            refused.append(f"{call}: {str(error).splitlines()[0][:80]}")
    print(
        f"{taken} of {taken + len(refused)} overloads of torch {torch.__version__.partition('+')[0]} compile"
    )
    print("\n".join(refused))


if __name__ == "__main__":
    main()
