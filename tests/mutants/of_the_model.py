"""Models with one mistake each. Every invariant must be broken by at least one of them.

A mutation names the profile that shows it, and the invariant that must see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spec.bounds import PROFILES, Bounds
from spec.edit import Edit
from spec.model import Model
from spec.state import (
    COMPLETED,
    FAILED,
    LIVE,
    NOBODY,
    Page,
    blank_gpu,
    hits,
    name_of,
    readable_leases,
)


@dataclass(frozen=True)
class Mutation:
    model: type[Model]
    bounds: Bounds
    invariant: str


MUTATIONS: list[Mutation] = []


def mutation(profile: str, invariant: str, **wider: int):
    def note(model: type[Model]) -> type[Model]:
        MUTATIONS.append(Mutation(model, replace(PROFILES[profile].bounds, **wider), invariant))
        return model

    return note


@mutation("pairs", "S2")
class PublishAtEnqueue(Model):
    def all_enqueued(self, edit, i):
        super().all_enqueued(edit, i)
        t = edit.transfers[i]
        if t.owner != NOBODY:
            edit.change_page(t.owner, t.page, clean=True, proven=self.bounds.rows)
            self.publish(edit, t.owner)


@mutation("ranks", "S2")
class OneRankIsEnough(Model):
    def deliver(self, state, i, rank, fact):
        t = state.transfers[i]
        edit = super().deliver(state, i, rank, fact)
        if fact == COMPLETED and i < len(edit.transfers) and edit.transfers[i].payload == t.payload:
            self.all_completed(edit, i)
        return edit


@mutation("ranks", "S2")
class CountsInsteadOfSets(Model):
    """A repeated report is counted as another rank's."""

    def deliver(self, state, i, rank, fact):
        if state.transfers[i].known[rank] == fact == COMPLETED:
            edit = Edit(self.bounds, state)
            self.all_completed(edit, i)
            return edit
        return super().deliver(state, i, rank, fact)


@mutation("pairs", "S3")
class PublishWithGap(Model):
    def publish(self, edit, r):
        super().publish(edit, r)
        for p, page in enumerate(edit.requests[r].pages):
            name = name_of(self.bounds, r, p)
            if page.clean and name not in edit.prefix:
                edit.prefix[name] = page.host


@mutation("drafts", "S4")
class SealDraftRow(Model):
    def final_rows(self, state, r):
        return state.requests[r].computed


@mutation("core", "S5", requests=1, gpu=4)
class UnpinDirty(Model):
    def may_unpin(self, state, r, p):
        return state.requests[r].hot and p < len(state.requests[r].pages) - 2


@mutation("core", "S6")
class UnpinWithoutHotRegion(Model):
    def may_unpin(self, state, r, p):
        return state.requests[r].pages[p].clean and p < len(state.requests[r].pages) - 2


@mutation("pairs", "S7")
class UnpinTail(Model):
    def may_unpin(self, state, r, p):
        return state.requests[r].pages[p].clean and state.requests[r].hot


@mutation("ranks", "S8")
class FreeWhenFirstRankEnqueued(Model):
    def deliver(self, state, i, rank, fact):
        t = state.transfers[i]
        edit = super().deliver(state, i, rank, fact)
        if i < len(edit.transfers) and edit.transfers[i].kind == t.kind and edit.transfers[i].leases_gpu:
            self.all_enqueued(edit, i)
        return edit


@mutation("pairs", "B1")
class FreeOnPlan(Model):
    def spill(self, state, r, p):
        edit = super().spill(state, r, p)
        edit.release_gpu(edit.transfers[-1].gpu)
        return edit


@mutation("imports", "S9")
class ImportIntoPublishedBlock(Model):
    def import_begin(self, state, r, rows, hosts, keys):
        edit = super().import_begin(state, r, rows, hosts, keys)
        return edit if not edit.requests[r].published else _as_hole(edit, r)


def _as_hole(edit, r):
    edit.change(r, published=0)
    edit.change_page(r, 0, clean=False)
    return edit


@mutation("imports", "S10")
class AppendWithoutRestore(Model):
    def write(self, state, r, mirrored, draft):
        request = state.requests[r]
        p = request.computed // self.bounds.rows
        if request.status == LIVE and p < len(request.pages) and not request.pages[p].gpu:
            edit = Edit(self.bounds, state)
            edit.change(r, computed=request.computed + 1)
            return edit
        return super().write(state, r, mirrored, draft)


@mutation("copies", "S11")
class CopyOfPageBeingRestored(Model):
    def restore(self, state, r, p, gpu):
        edit = super().restore(state, r, p, gpu)
        host = edit.requests[r].pages[p].host
        if host in edit.prefix.values():
            edit.copies.setdefault(host, gpu)
        return edit


@mutation("imports", "S12")
class FailedImportIsValid(Model):
    def import_end(self, state, r, ok):
        edit = Edit(self.bounds, state)
        request = edit.change(r, status=LIVE, final=state.requests[r].computed)
        for p in range(request.published, len(request.pages)):
            if (p + 1) * self.bounds.rows <= request.computed:
                edit.change_page(r, p, clean=True, proven=self.bounds.rows)
        self.publish(edit, r)
        return edit


@mutation("faults", "S12")
class FailedCopyIsValid(Model):
    def deliver(self, state, i, rank, fact):
        return super().deliver(state, i, rank, COMPLETED if self._failed(state, i, rank) else fact)

    def _failed(self, state, i, rank):
        return state.transfers[i].progress[rank] == FAILED

    def all_completed(self, edit, i):
        edit.transfers[i] = edit.transfers[i]._replace(known=(COMPLETED,) * self.bounds.ranks)
        super().all_completed(edit, i)

    def fail(self, state, i, rank):
        edit = super().fail(state, i, rank)
        edit.transfers[i] = edit.transfers[i]._replace(progress=state.transfers[i].progress)
        if edit.transfers[i].owner != NOBODY:
            edit.change_page(edit.transfers[i].owner, edit.transfers[i].page, clean=True, proven=self.bounds.rows)
        return edit


@mutation("imports", "S13")
class ImportedTailIsValid(Model):
    def import_end(self, state, r, ok):
        edit = super().import_end(state, r, ok)
        if ok and edit.requests[r].status == LIVE:
            for p in range(len(edit.requests[r].pages)):
                edit.change_page(r, p, clean=True)
        return edit


@mutation("core", "S14")
class PublishAfterPreemption(Model):
    def disown(self, edit, r, p):
        pass


@mutation("faults", "S15")
class MirrorNeedsNoProof(Model):
    def write(self, state, r, mirrored, draft):
        edit = super().write(state, r, mirrored, draft)
        p = state.requests[r].computed // self.bounds.rows
        edit.change_page(r, p, proven=state.requests[r].computed % self.bounds.rows + 1)
        return edit


@mutation("drafts", "S15")
class DraftStaysProven(Model):
    def takeback(self, state, r):
        edit = super().takeback(state, r)
        p = edit.requests[r].computed // self.bounds.rows
        edit.change_page(r, p, proven=state.requests[r].pages[p].proven)
        return edit

    def write(self, state, r, mirrored, draft):
        return super().write(state, r, mirrored and draft, draft)


@mutation("groups", "S16")
class LostInOneGroupOnly(Model):
    def reuse(self, state, gpu):
        edit = super().reuse(state, gpu)
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    edit.change_page(r, p, gpu=gpu[1:])
        return edit


@mutation("core", "S17")
class HostBlockGoesFirst(Model):
    def finish(self, state, r):
        edit = super().finish(state, r)
        for p, page in enumerate(edit.requests[r].pages):
            if page.gpu:
                edit.change_page(r, p, host=0)
        return edit


@mutation("lines", "S18")
class HotBufferNotInvalidated(Model):
    def append(self, state, r, host, gpu):
        edit = super().append(state, r, host, gpu)
        for i, request in enumerate(state.requests):
            edit.change(i, lines=request.lines)
        return edit


@mutation("fence", "S19")
class NoFence(Model):
    def preempt(self, state, r):
        edit = super().preempt(state, r)
        for entry in edit.fenced[len(state.fenced) :]:
            for block in entry.gpu:
                edit.gpu_refs[block] -= 1
                edit.gpu_free.add(block)
            if entry.host:
                edit.host_refs[entry.host] -= 1
                edit.host_free.add(entry.host)
        del edit.fenced[len(state.fenced) :]
        return edit


@mutation("pairs", "B2")
class HostLeaseForgotten(Model):
    def all_completed(self, edit, i):
        edit.hold_host(edit.transfers[i].host)
        super().all_completed(edit, i)


@mutation("pairs", "B3")
class FreedTwice(Model):
    def finish(self, state, r):
        edit = super().finish(state, r)
        edit.gpu_free.update(block for page in state.requests[r].pages for block in page.gpu)
        return edit


@mutation("pairs", "B4")
class NullBlockQueued(Model):
    def preempt(self, state, r):
        edit = super().preempt(state, r)
        edit.gpu_free.add(0)
        return edit


@mutation("core", "B5")
class WatcherForgotten(Model):
    """One reader of a block does not hear that it was handed out."""

    def reuse(self, state, gpu):
        edit = super().reuse(state, gpu)
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    self._hand_out(edit, r, p, gpu)
        return edit

    def _hand_out(self, edit, reader, p, gpu):
        for r, request in enumerate(edit.requests):
            if r != reader and request.status == LIVE and not request.hot:
                edit.change_page(reader, p, gpu=gpu)
                edit.take_gpu(gpu)
                edit.change(r, hot=gpu)
                return


@mutation("pairs", "B6")
class CopyIndexNotDropped(Model):
    def evict(self, state, host):
        edit = super().evict(state, host)
        edit.copies = dict(state.copies)
        return edit


@mutation("pairs", "B6")
class NameOverwritten(Model):
    """A second block under one name takes the first one's place, whose copy stays indexed."""

    def publish(self, edit, r):
        request = edit.requests[r]
        for p in range(request.published, len(request.pages)):
            if request.pages[p].clean and p in edit.prefix and p < self.bounds.shared:
                edit.prefix[p] = request.pages[p].host
        super().publish(edit, r)


@mutation("pairs", "B7")
class WrongBlockSpilled(Model):
    def spill(self, state, r, p):
        return super().spill(state, r, p) if p == 0 else self._crossed(state, r, p)

    def _crossed(self, state, r, p):
        edit = super().spill(state, r, p)
        wrong = edit.requests[r].pages[0]
        t = edit.transfers[-1]
        edit.release_gpu(t.gpu)
        edit.hold_gpu(wrong.gpu)
        edit.transfers[-1] = t._replace(gpu=wrong.gpu)
        return edit


@mutation("pairs", "B8")
class RetiredTwice(Model):
    def deliver(self, state, i, rank, fact):
        t = state.transfers[i]
        edit = super().deliver(state, i, rank, fact)
        if t.known[rank] >= fact:
            edit.release_gpu(t.gpu)
        return edit


@mutation("pairs", "B9")
class SpilledTwice(Model):
    def spill(self, state, r, p):
        idle = state._replace(transfers=tuple([t._replace(owner=NOBODY) for t in state.transfers]))
        edit = super().spill(idle, r, p)
        edit.transfers[: len(state.transfers)] = state.transfers
        return edit


@mutation("copies", "B10")
class CopySourceFreedEarly(Model):
    def cow(self, state, r, host, gpu):
        edit = super().cow(state, r, host, gpu)
        edit.release_host(edit.transfers[-1].source)
        return edit


@mutation("core", "B11")
class QueryTakesBlocks(Model):
    def query(self, state):
        lease = next(iter(sorted(readable_leases(state))), None)
        return self.reuse(state, lease) if lease else super().query(state)


@mutation("pairs", "B12")
class AdoptWithoutPin(Model):
    def admit(self, state, r, cached):
        edit = super().admit(state, r, cached)
        for p, page in enumerate(edit.requests[r].pages):
            if page.gpu:
                edit.change_page(r, p, held=False)
                edit.release_gpu(page.gpu)
        return edit


@mutation("fence", "B13")
class StepSentEarly(Model):
    def write(self, state, r, mirrored, draft):
        edit = super().write(state, r, mirrored, draft)
        step = edit.steps[-1]
        edit.steps[-1] = step._replace(sent=step.sent[:-1])
        return edit


@mutation("pairs", "B14")
class TableRewritten(Model):
    def append(self, state, r, host, gpu):
        edit = super().append(state, r, host, gpu)
        edit.change(r, pages=edit.requests[r].pages[::-1])
        return edit


@mutation("copies", "S1")
class AdoptBeforeAllocation(Model):
    """A hit is adopted from a copy whose block was handed out since."""

    def admit(self, state, r, cached):
        found = hits(self.bounds, state, r)[:cached]
        edit = super().admit(state, r, cached)
        pages = []
        for host, page in zip(found, edit.requests[r].pages, strict=True):
            free = blank_gpu(state)
            if not page.gpu and len(free) > len(pages):
                gpu = (free[len(pages)],)
                edit.take_gpu(gpu)
                page = Page(host, gpu, (), True, True, self.bounds.rows)
            pages.append(page)
        edit.change(r, pages=tuple(pages))
        return edit
