"""The search of the design space: factors with their laws, points and what they give, studies that
machines share."""

from streamgen.search.evaluation import Evaluation
from streamgen.search.factors import Factor, Value
from streamgen.search.space import Point, Space, space

__all__ = ["Evaluation", "Factor", "Point", "Space", "Value", "space"]
