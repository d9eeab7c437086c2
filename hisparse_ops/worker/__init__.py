"""The worker: owns the bytes, carries out step plans, and lends a model what one forward pass touches."""

from hisparse_ops.worker.clock import Clock, Event, ImmediateClock
from hisparse_ops.worker.errors import EpochError, PlanError, UnreadableError, WorkerError, WorkerOrderError
from hisparse_ops.worker.sparse_kv import SparseKV
from hisparse_ops.worker.worker import Worker

__all__ = [
    "Clock",
    "EpochError",
    "Event",
    "ImmediateClock",
    "PlanError",
    "SparseKV",
    "UnreadableError",
    "Worker",
    "WorkerError",
    "WorkerOrderError",
]
