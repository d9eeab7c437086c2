"""Reads a `Snapshot` off the state. Costs what there is to count; not for every step."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from .metrics import Snapshot
from .pages import PageState
from .request import Request
from .state import ControlState
from .transfers import UNSENT


def take_snapshot(state: ControlState) -> Snapshot:
    live, active = list(state.live.values()), list(state.transfers.active.values())
    requests = Counter({"detached": len(state.detached)})
    requests.update(map(_kind, live))
    blank, free = sum(1 for _ in state.gpu.blank_blocks()), state.gpu.free
    return Snapshot(
        step=state.sequence,
        epoch=state.epoch,
        requests=requests,
        pages={s.value: sum(request.pages.count(s) for request in live) for s in PageState},
        gpu_usable=state.gpu.usable,
        gpu_blank=blank,
        gpu_readable=free - blank,
        gpu_hot=len(state.moved) * state.ledger.hot_cost,
        gpu_resting=state.fence.resting_gpu,
        host_usable=state.host.usable,
        host_blank=state.host.free - state.host.cached,
        host_cached=state.host.cached,
        host_resting=state.fence.resting_host,
        published=len(state.prefix),
        transfers=Counter(transfer.kind for transfer in active),
        transfer_ages=Counter(state.sequence - t.sent_at for t in active if t.sent_at != UNSENT),
        block_copies=len(state.transfers.copies),
        quarantined=len(state.transfers.quarantined),
        tainted_pages=sum(len(request.pages.tainted) for request in live),
        totals=deepcopy(state.totals),
    )


def _kind(request: Request) -> str:
    if request.incoming is not None:
        return "importing"
    if not request.readable:
        return "unreadable"
    return "resident" if request.hot is None else "host-readable"
