"""The main job: the same requests decoded three times, always with the same sparse attention.

    arm          rows live                       pool    when it is full
    resident     on the device                   ample   never
    small pool   on the device                   small   requests wait and are preempted
    hisparse     on the host, cached on device   small   pages are dropped; decoding goes on

The first and the last must agree in every token and every bit of every logit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hisparse_ops.control.recording import Trace
from hisparse_ops.engine.engine import Engine, EngineConfig, ModelRunner
from hisparse_ops.engine.figures import Figures
from hisparse_ops.engine.request import Request
from hisparse_ops.memory import host_budget
from hisparse_ops.memory.layout import LayoutError, plan_layout

SMALL_POOL_DIVISOR = 4  # the default small pool holds this part of full residency
NULL_BLOCKS = 1  # block 0 of each pool is never leased
_ANY_ROWS = 1 << 30  # a budget that any model plans with, to learn the sizes of its blocks

Progress = Callable[[str, int, int], None]  # arm, token positions done, of how many


@dataclass(frozen=True)
class Job:
    """What is decoded and in how many bytes: the ample device pool, the small one, and the host pool."""

    prompts: Sequence[Sequence[int]]
    new_tokens: int
    prefill_chunk: int
    full_residency_bytes: int
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Outcome:
    """`figures` of the arms that could run, by name; `unfit` says why one could not."""

    figures: dict[str, Figures]
    unfit: dict[str, str]
    tokens_identical: bool
    logits_identical: bool
    outputs: list[list[int]]

    @property
    def identical(self) -> bool:
        return self.tokens_identical and self.logits_identical


def plan_job(
    model: ModelRunner,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    prefill_chunk: int,
    device_bytes: int | None = None,
    host_bytes: int | None = None,
) -> Job:
    """Fill in the pool sizes that are not given: a quarter of full residency on the device, all rows on the host.

    Raises `LayoutError` if a request does not fit into the small pools even with HiSparse, and `HostMemoryError` if
    the host pool does not fit into the machine: before anything is computed.
    """
    sizes = plan_layout(model.spec, device_bytes=_ANY_ROWS * model.spec.row_bytes, host_bytes=0)
    lengths = [len(prompt) + new_tokens - 1 for prompt in prompts]
    full = sum(map(sizes.request_blocks, lengths)) + NULL_BLOCKS
    pages = sum(map(sizes.pages, lengths)) + NULL_BLOCKS
    job = Job(
        prompts=prompts,
        new_tokens=new_tokens,
        prefill_chunk=prefill_chunk,
        full_residency_bytes=full * sizes.block_bytes,
        device_bytes=full // SMALL_POOL_DIVISOR * sizes.block_bytes if device_bytes is None else device_bytes,
        host_bytes=pages * sizes.host_block_bytes if host_bytes is None else host_bytes,
    )
    layout = plan_layout(model.spec, job.device_bytes, job.host_bytes)
    for length in lengths:
        layout.check_request(length, prefill_chunk)
    host_budget.require(layout.host_bytes)
    return job


def replay(model: ModelRunner, job: Job, progress: Progress, trace: Trace | None = None) -> Outcome:
    """Run the three arms, and record the last in `trace`."""
    resident, resident_figures = _run("resident", model, job, job.full_residency_bytes, 0, progress)
    figures, unfit = {"resident": resident_figures}, {}
    try:
        figures["small pool"] = _run("small pool", model, job, job.device_bytes, 0, progress)[1]
    except LayoutError as error:
        unfit["small pool"] = str(error)
    hisparse, figures["hisparse"] = _run("hisparse", model, job, job.device_bytes, job.host_bytes, progress, trace)
    pairs = list(zip(resident, hisparse, strict=True))
    return Outcome(
        figures=figures,
        unfit=unfit,
        tokens_identical=all(a.output == b.output for a, b in pairs),
        logits_identical=all(_same_bits(a.logits, b.logits) for a, b in pairs),
        outputs=[request.output for request in hisparse],
    )


def _run(
    arm: str,
    model: ModelRunner,
    job: Job,
    device_bytes: int,
    host_bytes: int,
    progress: Progress,
    trace: Trace | None = None,
) -> tuple[list[Request], Figures]:
    requests = [Request(str(i), tuple(prompt), job.new_tokens) for i, prompt in enumerate(job.prompts)]
    config = EngineConfig(
        max_requests=len(requests),
        max_context=max(r.max_tokens for r in requests) + 1,
        prefill_chunk=job.prefill_chunk,
    )
    total = sum(r.max_tokens for r in requests)
    with Engine(model, plan_layout(model.spec, device_bytes, host_bytes), config) as engine:
        if trace is not None:
            engine.record(trace)
        for request in requests:
            engine.add(request)
        engine.run(lambda _: progress(arm, sum(r.computed for r in requests), total))
        return requests, engine.figures()


def _same_bits(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
