"""The step loop: schedule -> plan -> worker and model -> reports -> seal -> retire.

One worker, one step in flight, one forward pass per request and step (see `request.py` for why).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hisparse_ops.control.config import CoordinatorConfig
from hisparse_ops.control.coordinator import Coordinator
from hisparse_ops.control.recording import Trace
from hisparse_ops.control.recording import record as record_coordinator
from hisparse_ops.control.types import Scheduled
from hisparse_ops.engine.figures import Figures
from hisparse_ops.engine.request import Phase, Request
from hisparse_ops.engine.scheduler import Scheduler, Slice
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout, ModelSpec
from hisparse_ops.worker.errors import UnreadableError
from hisparse_ops.worker.recording import record as record_worker
from hisparse_ops.worker.sparse_kv import SparseKV
from hisparse_ops.worker.worker import Worker

_MAX_IDLE_STEPS = 64  # steps in which nothing is computed before the engine calls itself stuck


class ModelRunner(Protocol):
    """What the engine asks of a model."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device:
        """Where it computes, and so where its rows lie."""

    @property
    def max_positions(self) -> int: ...

    def forward(self, kv: SparseKV, tokens: list[int]) -> Tensor:
        """Compute the rows of `tokens` at `kv.positions`; logits of the last one, [vocab] float32."""


class StuckError(RuntimeError):
    """No request can go on and nothing is on its way that would change that."""


@dataclass(frozen=True)
class EngineConfig:
    """`max_context` bounds prompt plus output of a request, in tokens. `prefill_chunk`, the prompt tokens of one
    forward pass, is a multiple of the block size."""

    max_requests: int
    max_context: int
    prefill_chunk: int = 256


class Engine:
    """Owns the pools, the coordinator and the worker. A context manager: leaving it releases the host pool.

    A layout without host blocks keeps every row on the device: full residency, the baseline."""

    def __init__(self, model: ModelRunner, layout: Layout, config: EngineConfig) -> None:
        block = layout.block_size
        if config.prefill_chunk < 1 or config.prefill_chunk % block:
            raise ValueError(f"prefill_chunk is {config.prefill_chunk}: expected a multiple of the block size {block}")
        if not 1 <= config.max_context <= model.max_positions:
            raise ValueError(f"max_context is {config.max_context}: the model takes 1 to {model.max_positions} tokens")
        if config.max_requests < 1:
            raise ValueError(f"max_requests is {config.max_requests}: expected at least 1")
        self._model = model
        self._layout = layout
        self._config = config
        max_pages = layout.pages(config.max_context)
        on_gpu = model.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(model.device)
            self._bytes_before = torch.cuda.memory_allocated(model.device)
        self._host_pool = HostPool(layout, model.dtype, pin=on_gpu) if layout.host_blocks else None
        self._worker = Worker(
            layout,
            KVPool(layout, model.dtype, model.device),
            self._host_pool,
            state_rows=config.max_requests,
            max_pages=max_pages,
            staging_pages=max_pages,
        )
        self._coordinator = Coordinator(
            layout,
            CoordinatorConfig(
                max_requests=config.max_requests, max_pages=max_pages, host_tier=self._host_pool is not None
            ),
        )
        self._scheduler = Scheduler(
            self._coordinator,
            block_size=block,
            chunk=config.prefill_chunk,
            step_tokens=config.prefill_chunk + config.max_requests,
        )
        self._requests: dict[str, Request] = {}
        self._steps = self._new_tokens = self._computed_tokens = self._peak_requests = 0
        self._seconds = 0.0
        self._unfinished: list[int] = []  # steps whose device work may not have ended

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._host_pool is not None:
            self._host_pool.close()

    def record(self, trace: Trace) -> None:
        """Record what control and worker do, until the trace is closed. Before the first step."""
        record_coordinator(self._coordinator, trace, {"torch": torch.__version__, "device": self._worker.device.type})
        record_worker(self._worker, trace.write)

    def add(self, request: Request) -> None:
        """Queue a request. ValueError if its id is live or it could never fit."""
        if request.id in self._requests:
            raise ValueError(f"request id {request.id!r} is live: expected a new one")
        limit = self._config.max_context
        if len(request.prompt) + request.max_new_tokens > limit:
            raise ValueError(
                f"request {request.id!r} has {len(request.prompt)} prompt and {request.max_new_tokens} new tokens: "
                f"expected at most max_context = {limit} together"
            )
        self._layout.check_request(request.max_tokens, self._config.prefill_chunk)
        self._requests[request.id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request now; its output so far stays in the `Request`. KeyError if there is none of this id."""
        self._retire(self._requests[request_id], Phase.ABORTED)

    @property
    def busy(self) -> bool:
        """Requests are live, or transfers of finished ones are pending."""
        return bool(self._requests) or not self._coordinator.quiescent()

    def run(self, on_step: Callable[[Engine], None] | None = None) -> None:
        """Step until nothing is left to do. StuckError if requests wait for what will never come."""
        idle = 0
        while self.busy:
            idle = 0 if self.step() else idle + 1
            if idle > _MAX_IDLE_STEPS:
                raise StuckError(f"{len(self._requests)} requests wait and none can go on")
            if on_step is not None:
                on_step(self)

    def step(self) -> int:
        """One step; the number of token positions computed in it. Without any it waits for the device."""
        began = time.perf_counter()
        if self._unfinished:
            self._hear()  # an earlier step may have ended since: what it held is free before more is planned
        slices = self._scheduler.schedule()
        self._peak_requests = max(self._peak_requests, len(self._scheduler.running))
        plan = self._coordinator.plan_step([Scheduled(s.request.id, s.start, s.end) for s in slices])
        self._worker.begin_step(plan)
        logits = [self._forward(s) for s in slices]
        self._worker.end_step()
        self._unfinished.append(plan.sequence)
        if not slices:  # not to spin: control counts lateness in steps, and would call what is under way overdue
            self._worker.wait()
        self._hear()
        for s, row in zip(slices, logits, strict=True):
            self._accept(s, row)
        computed = sum(s.end - s.start for s in slices)
        self._steps += 1
        self._computed_tokens += computed
        self._seconds += time.perf_counter() - began
        return computed

    def _hear(self) -> None:
        """Pass on what the worker reports; a step is done once its event has passed on the device."""
        for report in self._worker.poll():
            self._coordinator.apply(report)
        in_flight = set(self._worker.in_flight)
        for sequence in self._unfinished:
            if sequence not in in_flight:
                self._coordinator.step_done(sequence)
        self._unfinished = [sequence for sequence in self._unfinished if sequence in in_flight]

    def check(self) -> None:
        """AssertionError naming an invariant of the control plane that does not hold."""
        self._coordinator.check()

    def figures(self) -> Figures:
        """Totals since the engine was made."""
        counters = self._worker.counters()
        return Figures(
            peak_requests=self._peak_requests,
            preemptions=self._scheduler.preemptions,
            steps=self._steps,
            computed_tokens=self._computed_tokens,
            new_tokens=self._new_tokens,
            seconds=self._seconds,
            resident_references=counters["resident"],
            hot_hits=counters["hit"],
            misses=counters["miss"],
            faults=counters["fault"],
            host_bytes_read=counters["host_bytes_read"] + counters["stage_host_bytes"],
            mirrored_bytes=counters["mirror_bytes"],
            spilled_pages=self._coordinator.snapshot().totals.spilled_pages,
            reused_tokens=self._scheduler.reused_tokens,
            device_peak_bytes=self._device_peak(counters["device_bytes"]),
            host_peak_bytes=counters["host_bytes"],
        )

    def _device_peak(self, worker_bytes: int) -> int:
        """On a GPU all that was taken since the engine was made; on the CPU what stands for a GPU's memory."""
        device = self._model.device
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device) - self._bytes_before
        return worker_bytes

    def _forward(self, s: Slice) -> Tensor | None:
        """Logits of the slice's last row; None if a page of its context did not arrive."""
        try:
            kv = self._worker.kv(s.state_row, s.start, s.end - s.start, prefill=s.prefill)
        except UnreadableError:
            return None
        return self._model.forward(kv, s.request.tokens(s.start, s.end))

    def _accept(self, s: Slice, logits: Tensor | None) -> None:
        """The slice's rows exist; at the last known token its logits give the next one (greedy). A request whose
        context did not arrive starts again from what is published."""
        request = s.request
        if logits is None:
            self._scheduler.preempt(request)
            return
        request.computed = s.end
        if s.end == request.num_tokens:
            request.output.append(int(logits.argmax()))
            request.logits.append(logits)
            self._new_tokens += 1
        known = len(request.page_hashes)
        hashes = request.hash_full_pages(self._config.prefill_chunk, self._layout.block_size)
        self._coordinator.seal(request.id, s.end, hashes[known:])
        if request.done:
            self._retire(request, Phase.FINISHED)

    def _retire(self, request: Request, phase: Phase) -> None:
        self._scheduler.retire(request, phase)
        del self._requests[request.id]
