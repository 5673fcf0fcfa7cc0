"""Kernels with memory ports: what computes addresses, together with the DMAs that it feeds."""

from streamgen.memory.kv_load import KvLoad, KvLoadParams
from streamgen.memory.kv_store import KvStore, KvStoreParams
from streamgen.memory.rows_load import RowsLoad, RowsLoadParams

__all__ = ["KvLoad", "KvLoadParams", "KvStore", "KvStoreParams", "RowsLoad", "RowsLoadParams"]
