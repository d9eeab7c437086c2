"""B1-B14: counts equal holders, and nothing is known that is not so."""

from __future__ import annotations

from collections import Counter

from ..bounds import Bounds
from ..model import Action
from ..state import (
    ABSENT,
    COPY,
    DETACHED,
    NOBODY,
    State,
    final_content,
    pages_of,
)
from .registry import of_state, of_step


@of_state("B1", "Reference counts of GPU blocks equal the holders.")
def b1(bounds: Bounds, state: State) -> str | None:
    held: Counter[int] = Counter()
    for _, _, page in pages_of(state):
        held.update(page.keys)
        if page.held:
            held.update(page.gpu)
    for request in state.requests:
        held.update(request.hot)
    for transfer in state.transfers:
        if transfer.leases_gpu:
            held.update(transfer.gpu)
    for entry in state.fenced:
        held.update(entry.gpu)
    for block, refs in enumerate(state.gpu_refs):
        if refs != held[block]:
            return f"GPU block {block} has count {refs} and {held[block]} holders"
    return None


@of_state("B2", "Reference counts of host blocks equal the holders.")
def b2(bounds: Bounds, state: State) -> str | None:
    held: Counter[int] = Counter()
    held.update(page.host for _, _, page in pages_of(state))
    held.update(transfer.host for transfer in state.transfers)
    held.update(transfer.source for transfer in state.transfers if transfer.source)
    held.update(entry.host for entry in state.fenced if entry.host)
    for block, refs in enumerate(state.host_refs):
        if refs != held[block]:
            return f"host block {block} has count {refs} and {held[block]} holders"
    return None


@of_state("B3", "The free queue is exactly the blocks of count 0 without the null block; no repeats.")
def b3(bounds: Bounds, state: State) -> str | None:
    for free, refs in ((state.gpu_free, state.gpu_refs), (state.host_free, state.host_refs)):
        want = {block for block, count in enumerate(refs) if count == 0 and block}
        if free != want:
            return f"free {sorted(free)}, of count 0 {sorted(want)}"
    return None


@of_state("B4", "The null block is never leased, freed, hashed or queued.")
def b4(bounds: Bounds, state: State) -> str | None:
    if state.gpu_refs[0] or state.host_refs[0] or 0 in state.gpu_free or 0 in state.host_free:
        return "block 0 is counted or queued"
    if any(host == 0 for _, host in state.prefix) or any(0 in gpu for _, gpu in state.copies):
        return "block 0 is published or indexed"
    return None


@of_state("B5", "Whoever still reads a free block loses it when it is handed out, and only then.")
def b5(bounds: Bounds, state: State) -> str | None:
    owner_of: dict[int, tuple[str, int]] = {}
    claims = [(page.gpu, ("host block", page.host)) for _, _, page in pages_of(state)]
    claims += [(gpu, ("host block", host)) for host, gpu in state.copies]
    claims += [(page.keys, ("keys of host block", page.host)) for _, _, page in pages_of(state)]
    claims += [(keys, ("keys of host block", host)) for host, keys in state.key_copies]
    claims += [(request.hot, ("the hot region of", r)) for r, request in enumerate(state.requests)]
    for blocks, owner in claims:
        for block in blocks:
            if owner_of.setdefault(block, owner) != owner:
                return f"GPU block {block} is read for {owner_of[block]} and for {owner}"
    return None


@of_state("B6", "The copy index and its inverse agree; a reused block drops the whole tuple.")
def b6(bounds: Bounds, state: State) -> str | None:
    name_by_host = {host: name for name, host in state.prefix}
    if len({gpu for _, gpu in state.copies}) != len(state.copies):
        return "one GPU copy is indexed for two host blocks"
    for host, _ in state.key_copies:
        if host not in name_by_host:
            return f"the index keys of host block {host} outlive its hash"
    for host, gpu in state.copies:
        if host not in name_by_host:
            return f"the copy of host block {host} outlives its hash"
        if any(state.gpu[block] != final_content(bounds, name_by_host[host]) for block in gpu):
            return f"the copy of host block {host} holds other bytes"
    return None


@of_state("B7", "A page's pending transfer and the ledger agree.")
def b7(bounds: Bounds, state: State) -> str | None:
    for transfer in state.transfers:
        if transfer.owner == NOBODY:
            continue
        pages = state.requests[transfer.owner].pages
        if transfer.page >= len(pages):
            return f"a transfer of page {transfer.page} of request {transfer.owner}, which has {len(pages)}"
        page = pages[transfer.page]
        if page.host != transfer.host or (transfer.kind != COPY and page.gpu != transfer.gpu):
            return f"a transfer of page {transfer.page} of request {transfer.owner} moves other blocks than the page's"
    return None


@of_step("B8", "Retiring is idempotent.", "deliver")
def b8(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    _, i, rank, fact = action
    if (before.transfers[i].known[rank] >= fact or before.transfers[i].lost) and before != after:
        return f"a repeated or late report of rank {rank} changed something"
    return None


@of_state("B9", "One pending transfer per page.")
def b9(bounds: Bounds, state: State) -> str | None:
    owned = [(t.owner, t.page) for t in state.transfers if t.owner != NOBODY]
    return "two transfers of one page" if len(set(owned)) != len(owned) else None


@of_state("B10", "Both ends of a block copy are held until acknowledged.")
def b10(bounds: Bounds, state: State) -> str | None:
    for t in state.transfers:
        if t.kind == COPY and not (state.host_refs[t.host] and state.host_refs[t.source]):
            return f"the copy from host block {t.source} to {t.host} does not hold both"
    return None


@of_step("B11", "Capacity queries are pure.", "query")
def b11(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    return "a query changed something" if before != after else None


@of_step("B12", "Adoption pins only after the admitting allocation.", "admit")
def b12(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    copies = dict(before.copies)
    for p, page in enumerate(after.requests[action[1]].pages):
        if page.gpu and (copies.get(page.host) != page.gpu or not page.held):
            return f"page {p} adopted {page.gpu}, which is no readable copy of host block {page.host}"
    return None


@of_step("B13", "The worker's residency view is control's at the last scheduled step.", "write", "grow")
def b13(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    if after.steps:
        table = tuple([(page.host, page.gpu) for page in after.requests[action[1]].pages])
        if after.steps[-1].sent != table:
            return f"request {action[1]} was sent {after.steps[-1].sent} and is at {table}"
    return None


@of_step("B14", "Table rows are append-only.")
def b14(bounds: Bounds, before: State, action: Action, after: State) -> str | None:
    for r, (was, now) in enumerate(zip(before.requests, after.requests, strict=True)):
        if was is now or was.status in (ABSENT, DETACHED) or now.status != was.status:
            continue
        kept = len(was.pages) - (action[0] == "cow" and action[1] == r)
        if [p.host for p in now.pages[:kept]] != [p.host for p in was.pages[:kept]]:
            return f"an earlier page of request {r} has another host block"
    return None
