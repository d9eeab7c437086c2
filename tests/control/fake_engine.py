"""An engine that plays: it drives the public façade with fake workers and knows every token's tag.

Steps are planned ahead and executed later, rank by rank; reports wait in `mail` until a test
delivers, repeats, splits or drops them. Which of that happens is the test's choice, never chance.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from typing import NamedTuple

from control.fake_worker import FakeWorker, Faults, HostMemory, Tag, Work

from hisparse_ops.control import Coordinator, CoordinatorConfig
from hisparse_ops.control.policy import WatermarkPolicy
from hisparse_ops.control.types import (
    NO_HOST_BLOCK,
    Admission,
    Admitted,
    Extension,
    ImportAnswer,
    ImportStarted,
    Limits,
    RankReport,
    RefusalReason,
    Refused,
    Scheduled,
    StepPlan,
    TransferId,
    TransferKind,
)

DRAFT = -1  # the tag of a row that will be computed again
NO_FAULTS = Faults()
DRAIN_STEPS = 1500
FIRST_HOST_BLOCK = 1000  # host ids lie far from GPU ids: a mix-up shows


@dataclass(frozen=True)
class Shape:
    """A small pool: pages of 4 rows, two resident groups, one indexer group, hot regions of 2 x 2 blocks."""

    block_size: int = 4
    num_groups: int = 2
    num_indexer_groups: int = 1
    hot_blocks: int = 2
    num_blocks: int = 61
    host_blocks: int = 61


def config(**changes: object) -> CoordinatorConfig:
    """Production defaults, but for the sizes."""
    return with_changes(CoordinatorConfig(max_requests=8, max_pages=40), **changes)


def shuffled(ids: range, stride: int) -> list[int]:
    """All of `ids`, every `stride`-th first."""
    return [block for start in range(stride) for block in ids[start::stride]]


@dataclass
class Tokens:
    """A request as its user knows it. `tags[p]` names the whole prefix up to position p."""

    id: str
    tokens: list[int]
    prompt: int
    row: int = -1
    computed: int = 0  # rows planned, drafts not counted
    touched: bool = False  # rows were planned, or an import began
    replay: int = 0
    imported: bool = False  # ask control where to compute on
    told: int = 0  # page hashes that control knows
    tags: list[Tag] = field(default_factory=list)

    def __post_init__(self) -> None:
        tag = 1
        for token in self.tokens:
            tag = hash((tag, token))
            self.tags.append(tag)

    def hashes(self, tokens: int, block_size: int) -> list[int]:
        """One per full page of the first `tokens` tokens."""
        return [self.tags[(page + 1) * block_size - 1] for page in range(tokens // block_size)]

    @property
    def done(self) -> bool:
        return self.computed == len(self.tokens)


class Step(NamedTuple):
    plan: StepPlan
    work: list[Work]
    ends: dict[str, tuple[Tokens, int]]  # request -> (who, final tokens)


class FakeEngine:
    def __init__(self, shape: Shape | None = None, settings: CoordinatorConfig | None = None, shuffle: int = 7) -> None:
        """`shuffle`: the stride in which the initial free lists are walked."""
        self.shape = shape or Shape()
        self.config = settings or config()
        gpu, host = self.shape.num_blocks - 1, self.shape.host_blocks - 1
        self.c = Coordinator(
            self.shape,
            self.config,
            gpu_order=shuffled(range(1, 1 + gpu), shuffle),
            host_order=shuffled(range(FIRST_HOST_BLOCK, FIRST_HOST_BLOCK + host), shuffle),
        )
        self.live: dict[str, Tokens] = {}
        self.importing: dict[str, tuple[Tokens, int, ImportStarted]] = {}
        self.published: dict[int, list[Tag]] = {}  # hash -> the tags of its page
        self.mail: list[RankReport] = []
        self.refused: dict[str, Refused] = {}  # extensions of the last plan
        self.refusals: Counter[RefusalReason] = Counter()  # all extensions
        self.spills: set[TransferId] = set()
        self.done_steps: set[int] = set()
        self.epoch = 0
        self._start_workers()

    def _start_workers(self) -> None:
        shared: HostMemory = {}
        private = len(self.config.writer_ranks) > 1
        self.workers = {
            rank: FakeWorker(self.shape, rank, {} if private else shared, rank in self.config.writer_ranks, self.epoch)
            for rank in self.config.ranks
        }
        self.queues: dict[int, deque[Step]] = {rank: deque() for rank in self.config.ranks}
        self.open: dict[int, set[int]] = {}  # sequence -> ranks that have not executed it

    # -- requests ----------------------------------------------------------------------------

    def admit(
        self, name: str, tokens: Sequence[int], prompt: int, step: int = 8, reuse: int | None = None
    ) -> Admission:
        who = Tokens(name, list(tokens), prompt)
        size = self.shape.block_size
        for page, page_hash in enumerate(who.hashes(len(who.tokens), size)):
            self.published[page_hash] = who.tags[page * size : (page + 1) * size]
        answer = self.c.admit(name, who.hashes(prompt, size), prompt, Limits(len(tokens), step, reuse))
        if isinstance(answer, Admitted):
            who.row, who.computed, who.told = answer.state_row, answer.cached_tokens, prompt // size
            self.live[name] = who
        return answer

    def extend(self, name: str, tokens: int) -> Extension:
        return self.c.extend(name, tokens)

    def finish(self, name: str, publish: bool = True) -> None:
        self.c.finish(name, publish)
        del self.live[name]

    def preempt(self, name: str) -> None:
        self.c.preempt(name)
        del self.live[name]

    def begin_import(self, name: str, tokens: int) -> ImportAnswer:
        answer = self.c.begin_import(name, tokens)
        if isinstance(answer, ImportStarted):
            self.live[name].touched = True
            self.importing[name] = (self.live[name], tokens, answer)
        return answer

    def may_write(self, name: str) -> bool:
        """Whether the transport of an import may write yet."""
        after = self.importing[name][2].after_step
        return after is None or after in self.done_steps

    def transport(self, name: str, pages: int | None = None) -> None:
        """The transport writes the first `pages` pages of an import (default: all)."""
        who, tokens, started = self.importing[name]
        size = self.shape.block_size
        for target in started.pages[:pages]:
            tags = who.tags[target.page * size : min((target.page + 1) * size, tokens)]
            for worker in self.workers.values():
                worker.write_keys(target.indexer_blocks, tags)
                for offset, tag in enumerate(tags if target.host_block != NO_HOST_BLOCK else ()):
                    worker.host[target.host_block, offset] = tag

    def end_import(self, name: str, ok: bool, replay: int = 0) -> None:
        """`replay`: 1 to compute the last imported token again."""
        who, _, started = self.importing.pop(name)
        self.c.end_import(name, ok)
        who.imported = True
        who.replay = replay if started.pages and ok else 0

    # -- steps -------------------------------------------------------------------------------

    def plan(
        self,
        rows: dict[str, int] | None = None,
        drafts: dict[str, int] | None = None,
        unmirrored: dict[str, int] | None = None,
    ) -> StepPlan:
        """Plan a step in which each named request computes that many tokens, and drafts besides.
        Requests that are refused room sit it out."""
        self.refused = {}
        scheduled, work, ends = [], [], {}
        for name, count in (rows or {}).items():
            who = self.live[name]
            if not self.c.is_readable(name):
                continue
            if who.imported:
                computed = self.c.computed_tokens(name)
                landed = computed > who.computed
                who.computed, who.imported = computed - who.replay * landed, False
            end = min(who.computed + count, len(who.tokens))
            drafted = min(end + (drafts or {}).get(name, 0), len(who.tokens))
            if end == who.computed:
                continue
            who.touched = True
            answer = self.c.extend(name, drafted)
            if isinstance(answer, Refused):
                self.refused[name] = answer
                self.refusals[answer.reason] += 1
                continue
            scheduled.append(Scheduled(name, who.computed, drafted))
            tags = who.tags[:end] + [DRAFT] * (drafted - end)
            work.append(Work(who.row, who.computed, drafted, tags, (unmirrored or {}).get(name, 0)))
            ends[name] = (who, end)
            who.computed = end
        plan = self.c.plan_step(scheduled)
        self.spills |= {transfer.id for transfer in plan.transfers if transfer.kind is TransferKind.SPILL}
        self.open[plan.sequence] = set(self.config.ranks)
        for queue in self.queues.values():
            queue.append(Step(plan, work, ends))
        return plan

    def execute(self, rank: int, faults: Faults = NO_FAULTS) -> None:
        """A rank works off its oldest step. When all ranks have: the step is done, rows are sealed."""
        step = self.queues[rank].popleft()
        self.mail += self.workers[rank].execute(step.plan, step.work, faults)
        waiting = self.open[step.plan.sequence]
        waiting.discard(rank)
        if not waiting:
            del self.open[step.plan.sequence]
            self.done_steps.add(step.plan.sequence)
            self.c.step_done(step.plan.sequence)
            for name, (who, final) in step.ends.items():
                if self.live.get(name) is who:
                    self._step_ended(who, final)

    def execute_all(self, faults: Faults = NO_FAULTS) -> None:
        for rank, queue in self.queues.items():
            while queue:
                self.execute(rank, faults)

    def copy_engines(self) -> None:
        for worker in self.workers.values():
            self.mail += worker.copy_engine()

    def deliver(self, index: int = 0, keep: bool = False) -> None:
        """Hand a report to control; `keep` leaves it in the mail, to come again."""
        self.c.apply(self.mail[index] if keep else self.mail.pop(index))

    def deliver_all(self) -> None:
        while self.mail:
            self.deliver()

    def step(self, rows: dict[str, int] | None = None, **choices: dict[str, int]) -> StepPlan:
        """A calm step: planned, executed everywhere, every report delivered."""
        plan = self.plan(rows, **choices)
        self.execute_all()
        self.copy_engines()
        self.deliver_all()
        self.check()
        return plan

    def run(self, name: str, until: int | None = None, rows: int = 8) -> None:
        """Calm steps until a request has computed `until` tokens (default: all)."""
        who = self.live[name]
        goal = len(who.tokens) if until is None else until
        for _ in range(20 * len(who.tokens)):
            if who.computed >= goal:
                return
            self.step({name: min(rows, goal - who.computed)})
        raise AssertionError(f"L3: request {name!r} makes no progress")

    def drain(self) -> None:
        """Calm steps until every live request has finished and nothing is under way. As an engine
        would, it preempts the latest comer when somebody is refused room that is not on its way, and
        admits again when nobody waits for room."""
        self.execute_all()
        waiting: deque[Tokens] = deque()
        for _ in range(DRAIN_STEPS):
            self.copy_engines()
            self.deliver_all()
            for name in [name for name, who in self.live.items() if who.done]:
                self.finish(name)
            if not self.live and not waiting and self.c.quiescent():
                self.check()
                return
            self.plan(dict.fromkeys(self.live, 8))
            self.execute_all()
            lost = [name for name in self.live if not self.c.is_readable(name)]
            if any(answer.reason is not RefusalReason.PENDING for answer in self.refused.values()):
                lost.append(next(reversed(self.live)))
            for name in lost:
                waiting.appendleft(self.live[name])
                self.preempt(name)
            while waiting and not self.refused and not lost:
                who = waiting[0]
                if not self.admit(who.id, who.tokens, who.prompt).ok:
                    break
                waiting.popleft()
        raise AssertionError(f"L3, L7: not finished: {self.refused}, {self.c.snapshot()}")

    def settle(self, steps: int = 10) -> None:
        """Calm steps without requests."""
        for _ in range(steps):
            self.step()

    def reset(self) -> None:
        """No rank has work under way any more; then both pools are reset."""
        self.execute_all()
        self.copy_engines()
        self.c.reset()
        self.live.clear()

    def restart(self, rank: int) -> None:
        self.c.restart_rank(rank)
        self.epoch += 1
        self.live.clear()
        self._start_workers()

    def scarce(self, yes: bool = True) -> None:
        """Whether the policy shall think that GPU blocks are short."""
        blocks = 10**6 if yes else self.shape.num_blocks
        policy = WatermarkPolicy(blocks, self.c._state.ledger.hot_cost, self.config.watermark_divisor)
        vars(self.c._policy).update(vars(policy))

    def check(self) -> None:
        """Control's own books, and S2."""
        self.c.check()
        self.check_s2()

    def check_s2(self) -> None:
        """What is visible is right on every rank's backing."""
        for page_hash, tags in self.published.items():
            block = self.c._state.prefix.get(page_hash)
            if block is not None:
                for worker in self.workers.values():
                    assert worker.host_page(block) == tags, f"S2: host block {block} on rank {worker.rank}"

    def _step_ended(self, who: Tokens, final: int) -> None:
        if any(who.row in worker.aborted for worker in self.workers.values()):
            self.preempt(who.id)
        else:
            self.seal(who, final)

    def seal(self, who: Tokens, final: int) -> None:
        hashes = who.hashes(final, self.shape.block_size)[who.told :]
        who.told += len(hashes)
        self.c.seal(who.id, final, hashes)
