"""The real coordinator among ranks of tags: every public call is one action, and each is judged.

| judge            | sees                                                                           |
|------------------|--------------------------------------------------------------------------------|
| `Memory`         | the bytes that a step really reads                                             |
| the model        | the coordinator's books, through `abstraction`, as a state of the model        |
| `check()`        | what control itself can recount; asked last, the others do not need it         |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol.abstraction import abstract, free_order, transfer_ids
from protocol.moods import CALM, MOODS, Mood
from protocol.players import Arrival, Player
from protocol.ranks import Fact, Memory, Pass, Rank
from protocol.refinement import check_free_queue, check_news, compare, judge, read_by_several
from protocol.setup import NEVER, Setup
from protocol.witness import Wider

from hisparse_ops.control import Coordinator
from hisparse_ops.control.pages import HOLDS_KV, PageState
from hisparse_ops.control.request import Request
from hisparse_ops.control.types import (
    NO_HOST_BLOCK,
    Admitted,
    ImportStarted,
    RankReport,
    Scheduled,
    TransferId,
    TransferKind,
)
from spec.state import State, draft_tag, final_content, name_of

Action = tuple[Any, ...]
FIRST_HOST_BLOCK = 1000  # host ids lie far from GPU ids, so that a mix-up shows
TOLD = 12  # delivered facts that are remembered, to be told again


class World:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.bounds = setup, setup.bounds
        # Control has no bound on what is under way; a step in flight is control's, not a write's.
        self.model = Wider(replace(setup.bounds, steps=0, transfers=NEVER))
        host = self.bounds.host
        self.mood = Mood()
        self.c = Coordinator(
            setup,
            setup.config(),
            self.mood if setup.moods else None,
            gpu_order=range(self.bounds.gpu, 0, -1),
            host_order=range(FIRST_HOST_BLOCK, FIRST_HOST_BLOCK + host),
        )
        self.epoch = 0
        self.life = 0  # how often control was reset: what ranks say of an earlier life is no news
        self.leased: set[int] = set()  # host blocks that the next plan must name as recycled
        self.recycled: frozenset[int] = frozenset()
        self.shared: frozenset[tuple[int, ...]] = frozenset()  # blocks of pages that several requests read, or did
        self.taken: list[Action] = []  # what the last call was in the model
        self.beyond = ""  # or why it has no action for it
        self.leaving: int | None = None  # the slot of the request that the action ends
        self.players: dict[str, Player] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.slots: dict[Request, int] = {}
        self.names = {
            self.hash_of(slot, page): name_of(self.bounds, slot, page)
            for slot in range(self.bounds.requests)
            for page in range(self.bounds.pages)
        }
        self.open_steps: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        self._power_on()
        self.state: State = abstract(self)

    def _power_on(self) -> None:
        self.memory = Memory(self.bounds.rows)
        self.ranks = [Rank(number, self.epoch, True, self.life) for number in range(self.bounds.ranks)]
        self.facts: list[Fact] = []
        self.told: list[Fact] = []  # delivered, the newest last
        self.last: Fact | None = None  # delivered
        self.unproven: list[int] = []  # steps whose mirror was not proven before the action
        self.ids: list[int] = []  # of the transfers waited for before the action

    # -- tokens ------------------------------------------------------------------------------

    def hash_of(self, slot: int, page: int) -> int:
        """The chained hash of a page: equal names have equal hashes."""
        return 7_000 + name_of(self.bounds, slot, page)

    def tags(self, slot: int, end: int, drafts: int = 0) -> tuple[int, ...]:
        pages = range(-(-end // self.bounds.rows))
        tags = [tag for page in pages for tag in final_content(self.bounds, name_of(self.bounds, slot, page))][:end]
        return tuple(tags[: end - drafts] + [draft_tag(tag) for tag in tags[end - drafts :]])

    # -- one action, judged -------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Do it; only the bytes that are read are judged."""
        self.leaving = self.players[action[1]].slot if action[0] in ("finish", "abort", "preempt") else None
        getattr(self, action[0])(*action[1:])
        self._settle_imports()
        self._forget_gone()

    def act(self, action: Action) -> None:
        """Do it and judge it. Raises AssertionError with what is wrong."""
        before, order, self.ids = self.state, free_order(self), transfer_ids(self)
        self.unproven = list(self.c._state.mirror.open)
        self.do(action)
        self.wipe_blank()
        self.state = abstract(self)
        judge(self, before, action, self.state)
        self.taken = compare(self, before, action, self.state)
        self._check_recycled(before, action)
        check_news(before, action, self.state)
        self.shared = read_by_several(self.shared, self.state)
        check_free_queue(order, free_order(self), action, self.state, self.shared)
        self.c.check()

    def wipe_blank(self) -> None:
        """A blank block promises nothing: whoever still reads it shall see that."""
        gpu, host = self.c._state.gpu.blank_blocks(), self.c._state.host.blank_blocks()
        offsets = range(self.bounds.rows)
        views = (self.memory.stream, *[rank.durable for rank in self.ranks])
        for block in gpu:
            for offset in offsets:
                self.memory.gpu.pop((block, offset), None)
        for block in host:
            for offset in offsets:
                for view in views:
                    view.pop((block, offset), None)

    def _forget_gone(self) -> None:
        control = self.c._state
        if len(self.slots) > len(control.live) + len(control.detached):
            self.slots = {request: self.slots[request] for request in (*control.live.values(), *control.detached)}

    # -- the engine's calls ---------------------------------------------------------------------

    def admit(self, name: str, slot: int, prompt: int, reuse: int | None, mood: str = CALM, pick: int = 0) -> None:
        self.mood.set(mood, pick)
        rows = self.bounds.rows
        hashes = [self.hash_of(slot, page) for page in range(prompt // rows)]
        answer = self.c.admit(name, hashes, prompt, self.setup.limits(reuse))
        if isinstance(answer, Admitted):
            record = self.c._state.live[name]
            self.players[name] = Player(name, slot, answer.state_row, record, prompt, answer.cached_tokens)
            self.players[name].told = len(hashes)
            self.slots[record] = slot

    def step(
        self, counts: tuple[tuple[str, int, int, int], ...], failing: int = 0, mood: str = CALM, pick: int = 0
    ) -> None:
        """Plan and issue a step. For each request: rows, drafts behind them, rows the mirror skips."""
        self.mood.set(mood, pick)
        self.wipe_blank()
        scheduled, passes = [], []
        for name, rows, drafts, skipped in counts:
            player = self.players[name]
            start = player.computed
            end = min(start + rows + drafts, self.bounds.pages * self.bounds.rows, start + self.setup.step_rows)
            drafts = min(drafts, end - start)
            if end == start or not self.c.is_readable(name) or not self.c.extend(name, end).ok:
                continue
            if not self.c.is_readable(name):
                continue
            scheduled.append(Scheduled(name, start, end))
            passes.append(Pass(player.row, start, end, self.tags(player.slot, end, drafts), min(skipped, end - start)))
            player.computed, player.draft = end, drafts
        plan = self.c.plan_step(scheduled)
        self.recycled = frozenset(plan.recycled)
        for name, *_ in scheduled:
            self.players[name].planned = plan.sequence
        spills = [t.id for t in plan.transfers if t.kind is TransferKind.SPILL]
        failed = frozenset([*[copy.id for copy in plan.copies], *spills][:failing])
        work = self.memory.issue(plan, passes, failed)
        for rank in self.ranks:
            rank.stream.append(work)
        self._check_tables()
        pages = [page for player in self.players.values() for page in player.record.pages.table]
        held = frozenset(b for page in pages if page.kv and page.state in HOLDS_KV for b in page.kv.blocks)
        self.open_steps[plan.sequence] = (held, frozenset(page.host for page in pages))

    def takeback(self, name: str) -> None:
        """The drafts were not accepted: their rows will be computed again."""
        player = self.players[name]
        player.computed -= player.draft
        player.draft = 0

    def seal(self, name: str) -> None:
        player, rows = self.players[name], self.bounds.rows
        final = player.computed - player.draft
        hashes = [self.hash_of(player.slot, page) for page in range(player.told, final // rows)]
        player.told += len(hashes)
        self.c.seal(name, final, hashes)

    def finish(self, name: str) -> None:
        self.c.finish(name)
        del self.players[name]

    def abort(self, name: str) -> None:
        self.c.finish(name, publish=False)
        del self.players[name]

    def preempt(self, name: str) -> None:
        self.c.preempt(name)
        del self.players[name]

    def query(self) -> None:
        self.c.cached_tokens([self.hash_of(0, page) for page in range(self.bounds.pages)])
        self.c.can_admit([], 1, self.setup.limits())
        self.c.reclaimable()
        self.c.quiescent()
        self.c.snapshot()

    # -- imports --------------------------------------------------------------------------------

    def import_begin(self, name: str, tokens: int, mood: str = CALM, pick: int = 0) -> None:
        self.mood.set(mood, pick)
        answer = self.c.begin_import(name, tokens)
        if isinstance(answer, ImportStarted):
            hashed = self.c._state.host.hash_of
            shared = [page.host_block for page in answer.pages if page.host_block in hashed]
            assert not shared, f"S9: the transport may write published host blocks {shared}"
            self.arrivals[name] = Arrival(self.players[name], tokens, answer)

    def import_write(self, name: str) -> None:
        """The transport brings the next page of an import, to every rank."""
        arrival, rows = self.arrivals[name], self.bounds.rows
        target = arrival.started.pages[arrival.written]
        arrival.written += 1
        first = target.page * rows
        tags = self.tags(arrival.player.slot, min(first + rows, arrival.tokens))[first:]
        for offset, tag in enumerate(tags):
            for block in target.indexer_blocks:
                self.memory.gpu[block, offset] = tag
            if target.host_block != NO_HOST_BLOCK:
                self.memory.stream[target.host_block, offset] = tag
                for rank in self.ranks:
                    rank.durable[target.host_block, offset] = tag

    def import_end(self, name: str, ok: bool) -> None:
        arrival = self.arrivals.pop(name)
        self.c.end_import(name, ok)
        if ok and self.players.get(name) is arrival.player:
            arrival.player.imported = True

    def _settle_imports(self) -> None:
        for player in self.players.values():
            if player.imported and player.record.incoming is None:
                player.imported, player.computed = False, player.record.computed

    # -- ranks and reports ------------------------------------------------------------------------

    def run(self, rank: int) -> None:
        self.facts += self.ranks[rank].run()

    def arrive(self, rank: int, jobs: int = 1) -> None:
        """The oldest copies of a rank that are under way end, `jobs` of them."""
        for _ in range(min(jobs, len(self.ranks[rank].dma))):
            self.facts += self.ranks[rank].arrive()

    def step_done(self) -> None:
        sequence = min(self.open_steps)
        del self.open_steps[sequence]
        self.c.step_done(sequence)

    def deliver(self, index: int, keep: bool) -> None:
        """Control hears a fact. With `keep` it will be heard again."""
        fact = self.facts[index] if keep else self.facts.pop(index)
        self.last = fact
        self.told = [*self.told[-TOLD:], fact]
        self.c.apply(fact.report())

    def hear(self, rank: int, kind: str, number: int) -> None:
        """A rank goes on just as far as it must for something to be true, and control hears of it at once."""
        worker = self.ranks[rank]
        while (found := self._fact(rank, kind, number)) is None:
            under_way = any((job.kind, job.id) == (kind, number) for job in worker.dma)
            self.facts += worker.arrive() if under_way else worker.run()
        self.deliver(found, keep=False)

    def end_step(self) -> None:
        """Every rank ends the oldest step, and control hears that it is done."""
        for worker in self.ranks:
            while worker.ended < min(self.open_steps):
                under_way = any(job.kind == "ended" for job in worker.dma)
                self.facts += worker.arrive() if under_way else worker.run()
        self.step_done()

    def _fact(self, rank: int, kind: str, number: int) -> int | None:
        known = [(fact.rank, fact.epoch, fact.kind, fact.id) for fact in self.facts]
        wanted = (rank, self.epoch, kind, number)
        return known.index(wanted) if wanted in known else None

    def waits_for(self, fact: Fact) -> bool:
        """Whether control does not know the fact yet, and it will change something there."""
        transfers, writer = self.c._state.transfers, (fact.rank, fact.epoch)
        if fact.kind == "mirrored":
            step = self.c._state.mirror.open.get(fact.id)
            return step is not None and writer in step.silent
        if fact.kind == "copied" or fact.id in transfers.copies:
            return fact.id in transfers.copies and writer in transfers.copies[fact.id].not_copied
        transfer = transfers.active.get(fact.id)
        if transfer is None:
            return False
        return writer in (transfer.not_enqueued if fact.kind == "enqueued" else transfer.not_completed)

    def moods(self) -> list[tuple[str, int]] | list[tuple[()]]:
        """The answers that the policy may give, as the last arguments of an action."""
        if not self.setup.moods:
            return [()]
        picks = range(min(len(self.players), 2) or 1)
        return [(mood, pick) for mood in MOODS for pick in picks]

    def lose(self, index: int) -> None:
        del self.facts[index]

    def stranger(self, number: int) -> None:
        """A rank that has nothing to do with it, and one of another epoch, claim to have done all."""
        ids = frozenset([TransferId(number)])
        for rank, epoch in ((len(self.ranks), self.epoch), (0, self.epoch + 1)):
            self.c.apply(RankReport(rank, epoch, enqueued=ids, completed=ids, copied=ids))

    def reset(self) -> None:
        """Every rank ends its work first."""
        for rank in self.ranks:
            while rank.stream:
                self.facts += rank.run()
            while rank.dma:
                self.facts += rank.arrive()
        self.c.reset()
        self.life += 1
        for rank in self.ranks:
            rank.life = self.life
        self.players.clear()
        self.slots.clear()
        self.open_steps.clear()

    def restart(self, rank: int) -> None:
        self.c.restart_rank(rank)
        self.epoch += 1
        self.life += 1
        late = self.facts
        self.players.clear()
        self.slots.clear()
        self.open_steps.clear()
        self._power_on()
        self.facts = late

    # -------------------------------------------------------------------------------------------

    def _check_recycled(self, before: State, action: Action) -> None:
        """S18: every host block that was leased anew is named by the next plan, to be invalidated."""
        if action[0] in ("reset", "restart"):
            self.leased.clear()
            return
        hashed = {host for _, host in before.prefix}
        unhashed = hashed - {host for _, host in self.state.prefix}
        for host, (was, now) in enumerate(zip(before.host_refs, self.state.host_refs, strict=True)):
            if now and not was and (host not in hashed or host in unhashed):
                self.leased.add(FIRST_HOST_BLOCK - 1 + host)
        if action[0] == "step":
            missing = self.leased - self.recycled
            assert not missing, f"S18: host blocks {sorted(missing)} were leased anew, and no plan says so"
            self.leased.clear()

    def _check_tables(self) -> None:
        """B13: what the worker was told is where control stands, for every live request. What control gave
        up as overdue while it made the plan is told with the next one."""
        later = self.c._state.changes.pages
        for player in self.players.values():
            line = self.memory.table.get(player.row)
            known = len(player.record.pages.table)
            stale = [i for i, e in line.pages.items() if i >= known and (e.host_block or e.gpu_blocks)] if line else []
            assert not stale, f"B13: state row {player.row} still has pages {stale} of an earlier owner"
            for page in [page for page in player.record.pages.table if page not in later]:
                entry = line.pages.get(page.index) if line is not None else None
                kv = page.kv.blocks if page.kv is not None else ()
                assert entry is not None, f"B13: page {page.index} of {player.id} was never told"
                assert entry.gpu_blocks == kv, f"B13: page {page.index} of {player.id}: {entry.gpu_blocks}, not {kv}"
                assert entry.indexer_blocks == page.keys.blocks, f"B13: keys of page {page.index} of {player.id}"
                if page.state is PageState.IMPORT_HOLE:  # on its way, or given up: nobody may read it
                    assert not entry.host_block and not player.record.readable, f"B13: {player.id} reads a hole"
                else:
                    assert entry.host_block == page.host, f"B13: page {page.index} of {player.id} was told as nowhere"
