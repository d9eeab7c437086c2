"""Models with one mistake each. Every invariant must be broken by at least one of them.

A mutation names the profile that shows it, and the invariant that must see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spec.bounds import PROFILES, Bounds
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
    def deliver(self, state, edit, i, rank, fact):
        t = state.transfers[i]
        super().deliver(state, edit, i, rank, fact)
        if fact == COMPLETED and i < len(edit.transfers) and edit.transfers[i].payload == t.payload:
            self.all_completed(edit, i)


@mutation("ranks", "S2")
class CountsInsteadOfSets(Model):
    """A repeated report is counted as another rank's."""

    def deliver(self, state, edit, i, rank, fact):
        if state.transfers[i].known[rank] == fact == COMPLETED:
            self.all_completed(edit, i)
        else:
            super().deliver(state, edit, i, rank, fact)


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
    def deliver(self, state, edit, i, rank, fact):
        t = state.transfers[i]
        super().deliver(state, edit, i, rank, fact)
        if i < len(edit.transfers) and edit.transfers[i].kind == t.kind and edit.transfers[i].leases_gpu:
            self.all_enqueued(edit, i)


@mutation("pairs", "B1")
class FreeOnPlan(Model):
    def spill(self, state, edit, r, p):
        super().spill(state, edit, r, p)
        edit.release_gpu(edit.transfers[-1].gpu)


@mutation("imports", "S9")
class ImportIntoPublishedBlock(Model):
    def import_begin(self, state, edit, r, rows, hosts, keys):
        super().import_begin(state, edit, r, rows, hosts, keys)
        if edit.requests[r].published:
            edit.change(r, published=0)
            edit.change_page(r, 0, clean=False)


@mutation("imports", "S10")
class AppendWithoutRestore(Model):
    def write(self, state, edit, r, mirrored, draft):
        request = state.requests[r]
        p = request.computed // self.bounds.rows
        if request.status == LIVE and p < len(request.pages) and not request.pages[p].gpu:
            edit.change(r, computed=request.computed + 1)
        else:
            super().write(state, edit, r, mirrored, draft)


@mutation("copies", "S11")
class CopyOfPageBeingRestored(Model):
    def restore(self, state, edit, r, p, gpu):
        super().restore(state, edit, r, p, gpu)
        host = edit.requests[r].pages[p].host
        if host in edit.prefix.values():
            edit.copies.setdefault(host, gpu)


@mutation("imports", "S12")
class FailedImportIsValid(Model):
    def import_end(self, state, edit, r, ok):
        request = edit.change(r, status=LIVE, final=state.requests[r].computed)
        for p in range(request.published, len(request.pages)):
            if (p + 1) * self.bounds.rows <= request.computed:
                edit.change_page(r, p, clean=True, proven=self.bounds.rows)
        self.publish(edit, r)


@mutation("faults", "S12")
class FailedCopyIsValid(Model):
    def deliver(self, state, edit, i, rank, fact):
        super().deliver(state, edit, i, rank, COMPLETED if self._failed(state, i, rank) else fact)

    def _failed(self, state, i, rank):
        return state.transfers[i].progress[rank] == FAILED

    def all_completed(self, edit, i):
        edit.transfers[i] = edit.transfers[i]._replace(known=(COMPLETED,) * self.bounds.ranks)
        super().all_completed(edit, i)

    def fail(self, state, edit, i, rank):
        super().fail(state, edit, i, rank)
        edit.transfers[i] = edit.transfers[i]._replace(progress=state.transfers[i].progress)
        if edit.transfers[i].owner != NOBODY:
            edit.change_page(edit.transfers[i].owner, edit.transfers[i].page, clean=True, proven=self.bounds.rows)


@mutation("imports", "S13")
class ImportedTailIsValid(Model):
    def import_end(self, state, edit, r, ok):
        super().import_end(state, edit, r, ok)
        if ok and edit.requests[r].status == LIVE:
            for p in range(len(edit.requests[r].pages)):
                edit.change_page(r, p, clean=True)


@mutation("core", "S14")
class PublishAfterPreemption(Model):
    def disown(self, edit, r, p):
        pass


@mutation("faults", "S15")
class MirrorNeedsNoProof(Model):
    def write(self, state, edit, r, mirrored, draft):
        super().write(state, edit, r, mirrored, draft)
        p = state.requests[r].computed // self.bounds.rows
        edit.change_page(r, p, proven=state.requests[r].computed % self.bounds.rows + 1)


@mutation("drafts", "S15")
class DraftStaysProven(Model):
    def takeback(self, state, edit, r):
        super().takeback(state, edit, r)
        p = edit.requests[r].computed // self.bounds.rows
        edit.change_page(r, p, proven=state.requests[r].pages[p].proven)

    def write(self, state, edit, r, mirrored, draft):
        super().write(state, edit, r, mirrored and draft, draft)


@mutation("groups", "S16")
class LostInOneGroupOnly(Model):
    def reuse(self, state, edit, gpu):
        super().reuse(state, edit, gpu)
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    edit.change_page(r, p, gpu=gpu[1:])


@mutation("core", "S17")
class HostBlockGoesFirst(Model):
    def finish(self, state, edit, r):
        super().finish(state, edit, r)
        for p, page in enumerate(edit.requests[r].pages):
            if page.gpu:
                edit.change_page(r, p, host=0)


@mutation("lines", "S18")
class HotBufferNotInvalidated(Model):
    def append(self, state, edit, r, host, gpu):
        super().append(state, edit, r, host, gpu)
        for i, request in enumerate(state.requests):
            edit.change(i, lines=request.lines)


@mutation("fence", "S19")
class NoFence(Model):
    def preempt(self, state, edit, r):
        super().preempt(state, edit, r)
        for entry in edit.fenced[len(state.fenced) :]:
            for block in entry.gpu:
                edit.gpu_refs[block] -= 1
                edit.gpu_free.add(block)
            if entry.host:
                edit.host_refs[entry.host] -= 1
                edit.host_free.add(entry.host)
        del edit.fenced[len(state.fenced) :]


@mutation("pairs", "B2")
class HostLeaseForgotten(Model):
    def all_completed(self, edit, i):
        edit.hold_host(edit.transfers[i].host)
        super().all_completed(edit, i)


@mutation("pairs", "B3")
class FreedTwice(Model):
    def finish(self, state, edit, r):
        super().finish(state, edit, r)
        edit.gpu_free.update(block for page in state.requests[r].pages for block in page.gpu)


@mutation("pairs", "B4")
class NullBlockQueued(Model):
    def preempt(self, state, edit, r):
        super().preempt(state, edit, r)
        edit.gpu_free.add(0)


@mutation("core", "B5")
class WatcherForgotten(Model):
    """One reader of a block does not hear that it was handed out."""

    def reuse(self, state, edit, gpu):
        super().reuse(state, edit, gpu)
        for r, request in enumerate(state.requests):
            for p, page in enumerate(request.pages):
                if page.gpu == gpu and not page.held:
                    self._hand_out(edit, r, p, gpu)

    def _hand_out(self, edit, reader, p, gpu):
        for r, request in enumerate(edit.requests):
            if r != reader and request.status == LIVE and not request.hot:
                edit.change_page(reader, p, gpu=gpu)
                edit.take_gpu(gpu)
                edit.change(r, hot=gpu)
                return


@mutation("copies", "B5", keys=1, gpu=4)
class CopySharesIndexKeys(Model):
    """The copied page writes its index keys where those of the shared page are."""

    def cow(self, state, edit, r, host, gpu):
        super().cow(state, edit, r, host, gpu)
        shared = state.requests[r].pages[-1].keys
        edit.hold_gpu(shared)
        edit.release_gpu(edit.requests[r].pages[-1].keys)
        edit.change_page(r, len(edit.requests[r].pages) - 1, keys=shared)


@mutation("pairs", "B6")
class CopyIndexNotDropped(Model):
    def evict(self, state, edit, host):
        super().evict(state, edit, host)
        edit.copies = dict(state.copies)


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
    def spill(self, state, edit, r, p):
        super().spill(state, edit, r, p)
        wrong = edit.requests[r].pages[0]
        t = edit.transfers[-1]
        edit.release_gpu(t.gpu)
        edit.hold_gpu(wrong.gpu)
        edit.transfers[-1] = t._replace(gpu=wrong.gpu)


@mutation("pairs", "B8")
class RetiredTwice(Model):
    def deliver(self, state, edit, i, rank, fact):
        t = state.transfers[i]
        super().deliver(state, edit, i, rank, fact)
        if t.known[rank] >= fact:
            edit.release_gpu(t.gpu)


@mutation("pairs", "B9")
class SpilledTwice(Model):
    def spill(self, state, edit, r, p):
        idle = state._replace(transfers=tuple([t._replace(owner=NOBODY) for t in state.transfers]))
        super().spill(idle, edit, r, p)
        edit.transfers[: len(state.transfers)] = state.transfers


@mutation("copies", "B10")
class CopySourceFreedEarly(Model):
    def cow(self, state, edit, r, host, gpu):
        super().cow(state, edit, r, host, gpu)
        edit.release_host(edit.transfers[-1].source)


@mutation("core", "B11")
class QueryTakesBlocks(Model):
    def query(self, state, edit):
        lease = next(iter(sorted(readable_leases(state))), None)
        if lease:
            self.reuse(state, edit, lease)


@mutation("pairs", "B12")
class AdoptWithoutPin(Model):
    def admit(self, state, edit, r, cached):
        super().admit(state, edit, r, cached)
        for p, page in enumerate(edit.requests[r].pages):
            if page.gpu:
                edit.change_page(r, p, held=False)
                edit.release_gpu(page.gpu)


@mutation("fence", "B13")
class StepSentEarly(Model):
    def write(self, state, edit, r, mirrored, draft):
        super().write(state, edit, r, mirrored, draft)
        step = edit.steps[-1]
        edit.steps[-1] = step._replace(sent=step.sent[:-1])


@mutation("pairs", "B14")
class TableRewritten(Model):
    def append(self, state, edit, r, host, gpu):
        super().append(state, edit, r, host, gpu)
        edit.change(r, pages=edit.requests[r].pages[::-1])


@mutation("copies", "S1")
class AdoptBeforeAllocation(Model):
    """A hit is adopted from a copy whose block was handed out since."""

    def admit(self, state, edit, r, cached):
        found = hits(self.bounds, state, r)[:cached]
        super().admit(state, edit, r, cached)
        pages = []
        for host, page in zip(found, edit.requests[r].pages, strict=True):
            free = blank_gpu(state)
            if not page.gpu and len(free) > len(pages):
                gpu = (free[len(pages)],)
                edit.take_gpu(gpu)
                page = Page(host, gpu, (), True, True, self.bounds.rows)
            pages.append(page)
        edit.change(r, pages=tuple(pages))
