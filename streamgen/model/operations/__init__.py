"""The operations of logical graphs, one file each: shape law, float64 reference, exact golden
model, kernels."""

from streamgen.model.operations.attention import Attention
from streamgen.model.operations.binary import BINARY_OPERATIONS, Binary
from streamgen.model.operations.cache import Cache
from streamgen.model.operations.concat import Concat
from streamgen.model.operations.constant import Constant
from streamgen.model.operations.embedding import Embedding
from streamgen.model.operations.expression import Expression, as_expression
from streamgen.model.operations.identity import Identity
from streamgen.model.operations.last_row import LastRow
from streamgen.model.operations.linear import Linear
from streamgen.model.operations.log_softmax import LogSoftmax
from streamgen.model.operations.norm import Norm
from streamgen.model.operations.place_rows import PlaceRows
from streamgen.model.operations.position_rows import PositionRows
from streamgen.model.operations.rearrange import Rearrange
from streamgen.model.operations.reduce import Reduce
from streamgen.model.operations.reduce_tokens import ReduceTokens
from streamgen.model.operations.rotary import Rotary
from streamgen.model.operations.scalar import Scalar
from streamgen.model.operations.slice import Slice
from streamgen.model.operations.softmax import Softmax
from streamgen.model.operations.source_attention import SourceAttention
from streamgen.model.operations.table_rows import TableRows
from streamgen.model.operations.token_row import TokenRow
from streamgen.model.operations.top_k import TopK
from streamgen.model.operations.unary import Unary

__all__ = [
    "BINARY_OPERATIONS",
    "Attention",
    "Binary",
    "Cache",
    "Concat",
    "Constant",
    "Embedding",
    "Expression",
    "Identity",
    "LastRow",
    "Linear",
    "LogSoftmax",
    "Norm",
    "PlaceRows",
    "PositionRows",
    "Rearrange",
    "Reduce",
    "ReduceTokens",
    "Rotary",
    "Scalar",
    "Slice",
    "Softmax",
    "SourceAttention",
    "TableRows",
    "TokenRow",
    "TopK",
    "Unary",
    "as_expression",
]
