"""What all pipelined units are: operands and one enable in, a result some enabled cycles later."""

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import Any, ClassVar

from amaranth import Module, Value, unsigned
from amaranth.hdl import ShapeLike
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import Pipeline


class UnitParams(ABC):
    """Params of a unit: what it computes (`golden`), how (`stages`), what it costs, how long it takes.

    The component has the ports `enable`, the operands by their names, and `o`, the result: bits of values in
    `form`, where `shapes` says nothing else.
    """

    form: Any
    """The format (`Float`) of operands and result, if they have one in common."""
    operands: ClassVar[tuple[str, ...]] = ("i",)

    @property
    @abstractmethod
    def latency(self) -> int:
        """Stages, hence enabled cycles from operands to result."""

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """What synthesis uses."""

    @abstractmethod
    def golden(self, *args: Any, **kwargs: Any) -> ndarray:
        """The results for arrays of operands."""

    @abstractmethod
    def stages(self, m: Module, pipe: Pipeline, *args: Any, **kwargs: Any) -> Value:
        """Add the hardware to `m`, as stages of `pipe`, from the operands to the result."""

    def shapes(self) -> dict[str, ShapeLike]:
        """Of operands and result."""
        return dict.fromkeys((*self.operands, "o"), unsigned(self.form.bits))

    def build(self) -> "PipelinedUnit":
        return PipelinedUnit(self)


class MergedUnitParams(UnitParams):
    """A unit made of others, of whose stages only some have registers. kept: those, counted from 1."""

    kept: Set[int]

    @property
    def latency(self) -> int:
        return len(self.kept)

    def merged(self, m: Module, pipe: Pipeline) -> Pipeline:
        """The pipeline for the stages of the other units, one after another."""
        return Pipeline(m, pipe.enable, self.kept)


class PipelinedUnit(wiring.Component):
    """`enable` and operands in; `o`, the result, `latency` enabled cycles later."""

    def __init__(self, params: UnitParams) -> None:
        self._params = params
        shapes = params.shapes()
        operands = {name: In(shapes[name]) for name in params.operands}
        super().__init__({"enable": In(1), **operands, "o": Out(shapes["o"])})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        operands = [getattr(self, name) for name in self._params.operands]
        m.d.comb += self.o.eq(self._params.stages(m, Pipeline(m, self.enable), *operands))
        return m
