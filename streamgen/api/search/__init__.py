"""Search of the design space: factors with their laws, evaluations of points, and studies that machines
share."""

from streamgen.api.search.evaluation import Evaluation
from streamgen.api.search.factors import Factor, Value
from streamgen.api.search.space import Point, Space, space

__all__ = ["Evaluation", "Factor", "Point", "Space", "Value", "space"]
