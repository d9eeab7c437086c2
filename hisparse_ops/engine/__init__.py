"""A small continuous-batching engine: requests in, tokens out, over control and worker.

request    what a request is and which rows it computes next
scheduler  who computes in a step; talks to memory only through the `Coordinator`
engine     the step loop
figures    what a run did
replay     the same requests three times: resident, resident in a small pool, HiSparse in a small pool
trace      requests of a recorded trace's shape
"""

from hisparse_ops.engine.engine import Engine, EngineConfig, ModelRunner, StuckError
from hisparse_ops.engine.figures import Figures
from hisparse_ops.engine.request import Phase, Request
from hisparse_ops.engine.scheduler import Scheduler, Slice

__all__ = ["Engine", "EngineConfig", "Figures", "ModelRunner", "Phase", "Request", "Scheduler", "Slice", "StuckError"]
