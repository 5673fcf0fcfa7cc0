"""The operations of logical graphs, a file each: shape law, float64 reference, exact golden, kernels."""

from streamgen.operations.attention import Attention
from streamgen.operations.binary import BINARY_OPERATIONS, Binary
from streamgen.operations.cache import Cache
from streamgen.operations.concat import Concat
from streamgen.operations.constant import Constant
from streamgen.operations.embedding import Embedding
from streamgen.operations.identity import Identity
from streamgen.operations.last_row import LastRow
from streamgen.operations.linear import Linear
from streamgen.operations.norm import Norm
from streamgen.operations.position_rows import PositionRows
from streamgen.operations.rotary import Rotary
from streamgen.operations.scalar import Scalar
from streamgen.operations.slice import Slice
from streamgen.operations.softmax import Softmax
from streamgen.operations.table_rows import TableRows
from streamgen.operations.top_k import TopK
from streamgen.operations.unary import UNARY_FUNCTIONS, Unary

__all__ = [
    "BINARY_OPERATIONS",
    "UNARY_FUNCTIONS",
    "Attention",
    "Binary",
    "Cache",
    "Concat",
    "Constant",
    "Embedding",
    "Identity",
    "LastRow",
    "Linear",
    "Norm",
    "PositionRows",
    "Rotary",
    "Scalar",
    "Slice",
    "Softmax",
    "TableRows",
    "TopK",
    "Unary",
]
