"""Choose unroll factors under budgets, and predict the cycles of a pass."""

from streamgen.compiler.explore.attention import attention_width
from streamgen.compiler.explore.fixed import Fixed, fixed_factors
from streamgen.compiler.explore.plan import explore
from streamgen.compiler.explore.predict import phase_cycles, predict
from streamgen.compiler.explore.tokens import Known

__all__ = [
    "Fixed",
    "Known",
    "attention_width",
    "explore",
    "fixed_factors",
    "phase_cycles",
    "predict",
]
