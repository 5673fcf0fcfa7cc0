"""An expression over f24 values, each element of each token by itself, in whatever order tokens come.

    o = formula(i_a, i_b, …)                 streamgen.gateware.pointwise

One pipe of units computes the whole expression: values that others wait for stand in shift registers, and
constants are part of the hardware. A token goes in and out every cycle, as in `kernels.elementwise`. Each
operation rounds as it would in a kernel of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.gateware.arith import F24, NetworkParams
from streamgen.gateware.pointwise import Formula
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import ElementwiseParams


@dataclass(frozen=True, kw_only=True)
class ExpressionParams(ElementwiseParams):
    """A formula; ports i_a, i_b and so on, one for each of its values, and o.

    bounds["itensor"] is the itensor of every port; bounds["a"], bounds["b"] and so on may give single inputs
    another one of the same token count (a re-use loop, say, to combine one row with many).
    """

    formula: Formula

    @property
    def unit(self) -> NetworkParams:
        return self.formula.unit(F24)

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(f"i_{name}" for name in self.formula.names)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        order, ports = self.itensor(bounds, "itensor"), {}
        for name in self.formula.names:
            port = self.itensor(bounds, name) if name in bounds else order
            if port.token_count != order.token_count:
                raise ValueError(
                    f"{name} must have as many tokens as itensor, {order.token_count}; it has "
                    f"{port.token_count}"
                )
            ports[f"i_{name}"] = port
        return ports

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o, token by token; float32, elements that no token covers are 0."""
        order = self.itensor(bounds, "itensor")
        tokens = [port.to_tokens(inputs[name]) for name, port in self.inputs(bounds).items()]
        shape = (order.token_count, *order.element_shape)
        result = self.unit.golden(*(x.reshape(shape) for x in tokens)).astype(np.float32)
        return {"o": order.from_tokens(result, fill=0)}
