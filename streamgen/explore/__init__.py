"""Choice of tile and unroll factors under the user's budgets."""

from streamgen.explore.plan import explore

__all__ = ["explore"]
