"""The worker: owns the bytes, carries out step plans, and lends a model what one forward pass touches."""

from hisparse_ops.worker.errors import EpochError, PlanError, UnreadableError, WorkerError, WorkerOrderError
from hisparse_ops.worker.sparse_kv import SparseKV
from hisparse_ops.worker.streams import Event, ImmediateStream, Stream, Streams
from hisparse_ops.worker.worker import Worker

__all__ = [
    "EpochError",
    "Event",
    "ImmediateStream",
    "PlanError",
    "SparseKV",
    "Stream",
    "Streams",
    "UnreadableError",
    "Worker",
    "WorkerError",
    "WorkerOrderError",
]
