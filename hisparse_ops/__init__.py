"""Hybrid HiSparse for sparse-MLA models: host memory holds the KV cache, the GPU is its write-back cache.

Importing the package loads its compiled libraries: `torch.ops.hisparse.*` exists from then on. `ops.py` says what
each op does.
"""

from hisparse_ops import _library, ops
from hisparse_ops.hot_state import Batch, HotState, MissPlan, Tables
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.ops import (
    copy_blocks,
    gather_compact,
    gather_plan,
    invalidate,
    invalidate_blocks,
    mirror_rows,
    reset_rows,
    resolve,
    stage_prefill,
    translate,
)

_library.load()

__all__ = [
    "Batch",
    "HostPool",
    "HotState",
    "KVPool",
    "MissPlan",
    "Tables",
    "copy_blocks",
    "gather_compact",
    "gather_plan",
    "invalidate",
    "invalidate_blocks",
    "mirror_rows",
    "ops",
    "reset_rows",
    "resolve",
    "stage_prefill",
    "translate",
]
