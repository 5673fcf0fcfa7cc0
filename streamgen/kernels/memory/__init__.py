"""Kernels with memory ports: the computation of addresses, together with the DMAs that use them."""

from streamgen.kernels.memory.kv_load import KvLoad, KvLoadParams
from streamgen.kernels.memory.kv_store import KvStore, KvStoreParams
from streamgen.kernels.memory.pass_tiles import PassTilesParams
from streamgen.kernels.memory.rows_load import RowsLoad, RowsLoadParams, WaitingRowsLoadParams
from streamgen.kernels.memory.spill import (
    STORED,
    SpillLayout,
    SpillLoad,
    SpillLoadParams,
    SpillStore,
    SpillStoreParams,
)

__all__ = [
    "STORED",
    "KvLoad",
    "KvLoadParams",
    "KvStore",
    "KvStoreParams",
    "PassTilesParams",
    "RowsLoad",
    "RowsLoadParams",
    "SpillLayout",
    "SpillLoad",
    "SpillLoadParams",
    "SpillStore",
    "SpillStoreParams",
    "WaitingRowsLoadParams",
]
