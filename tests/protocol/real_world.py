"""The same worlds with the real worker: its pools, tables and hot slots, and the reports that it makes itself.

The ranks of tags play on beside it. What each row holds is spelt from its tag, so the worker's memory is judged
by the same oracle; and what the worker reports must be what the rank of tags would: then control hears it,
through the same channel, in any order, late, twice or never.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import torch
from protocol.ranks import Fact, Memory, Pass, Rank, Work
from protocol.world import FIRST_HOST_BLOCK, Setup, World

from hisparse_ops.control.types import NO_HOST_BLOCK, ImportPage, StepPlan, TransferId
from hisparse_ops.memory.host_pool import HostPool
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout, ModelSpec, plan_layout
from hisparse_ops.worker import ImmediateStream, SparseKV, Streams, Worker
from spec.bounds import Bounds

LAYERS, LEADERS = 4, (0, 1, 3)  # units of one, two and one layers
INDEX_LAYER = 100  # index keys of leader l are spelt as rows of layer 100 + l
WIDTH, INDEX_WIDTH = 4, 2  # numbers of a row, of an index key
BLOCK, TOP_K, MAX_QUERY_LEN = 2, 4, 2
PREFILLS = 0.3  # of the passes that could be a decode, how many read the whole context
DTYPE = torch.float32
NAN = float("nan")


def small_layout(gpu_blocks: int, host_blocks: int) -> Layout:
    """Of so many blocks, the null block not counted; host blocks have the numbers of `World`."""
    spec = ModelSpec(
        LAYERS,
        LEADERS,
        row_bytes=WIDTH * DTYPE.itemsize,
        index_row_bytes=INDEX_WIDTH * DTYPE.itemsize,
        block_size=BLOCK,
        top_k=TOP_K,
        max_query_len=MAX_QUERY_LEN,
        hot_slots=MAX_QUERY_LEN * TOP_K,
    )
    roomy = plan_layout(spec, 2**30, 0)
    host_bytes = (FIRST_HOST_BLOCK + host_blocks) * roomy.host_block_bytes
    return plan_layout(spec, (gpu_blocks + 1) * roomy.block_bytes, host_bytes)


def sizes(bounds: Bounds) -> Bounds:
    """The bounds with the groups that the planner makes of the model's layers."""
    layout = small_layout(bounds.gpu, bounds.host)
    groups = {"groups": layout.num_groups, "keys": layout.num_indexer_groups}
    return replace(bounds, rows=BLOCK, hot=layout.num_groups * layout.hot_blocks, **groups)


def spelt(tags: tuple[int, ...], layer: int, width: int = WIDTH) -> torch.Tensor:
    """[len(tags), width]: the rows that a layer holds of these tags."""
    return torch.tensor([([tag, layer, tag % 5, 7])[:width] for tag in tags], dtype=DTYPE).view(-1, width)


class Gate:
    """The end of a step on the device: every event of the step is done when it opens."""

    open = False

    def query(self) -> bool:
        return self.open


class HeldStream(ImmediateStream):
    """Work is done at once; that it is, the test says."""

    gate = Gate()

    def record(self) -> Gate:
        return self.gate


class RealMemory(Memory):
    """Every step is carried out by a worker as well, and every row that it reads is compared."""

    def __init__(self, setup: Setup, epoch: int) -> None:
        super().__init__(setup.bounds.rows)
        self.layout = small_layout(setup.bounds.gpu, setup.bounds.host)
        self.kv_pool = KVPool(self.layout, DTYPE)
        self.host_pool = HostPool(self.layout, DTYPE)
        self._gpu_blocks = self.kv_pool.storage.view(self.layout.num_blocks, -1)
        self._gpu_blocks[1:] = NAN
        self.stream_events = HeldStream()
        self.gates: deque[Gate] = deque()  # of the steps whose end is not known yet
        self.worker = Worker(
            self.layout, self.kv_pool, self.host_pool, state_rows=setup.live, max_pages=setup.max_pages, epoch=epoch,
            staging_pages=setup.max_pages, streams=Streams(self.stream_events, self.stream_events),
        )  # fmt: skip

    def issue(self, plan: StepPlan, passes: list[Pass], failing: frozenset[TransferId]) -> Work:
        work = super().issue(plan, passes, failing)
        self.stream_events.gate = Gate()
        self.gates.append(self.stream_events.gate)
        draw = random.Random(plan.sequence)
        self.worker.begin_step(plan)
        for item in passes:
            prefill = item.end - item.start > MAX_QUERY_LEN or draw.random() < PREFILLS
            kv = self.worker.kv(item.row, item.start, item.end - item.start, prefill)
            for layer in range(LAYERS):
                self._forward_layer(kv, item, layer, draw)
        self.worker.end_step()
        return work

    def _forward_layer(self, kv: SparseKV, item: Pass, layer: int, draw: random.Random) -> None:
        rows = spelt(item.tags, layer)
        kv.write(layer, rows[item.start :])
        if layer in LEADERS:
            keys = spelt(item.tags, INDEX_LAYER + layer, INDEX_WIDTH)
            kv.write_index(layer, keys[item.start :])
            assert torch.equal(kv.index_rows(layer), keys), f"S1: index keys of state row {item.row}, layer {layer}"
        if kv.prefill:
            assert torch.equal(kv.context_rows(layer), rows), f"S1: context of state row {item.row}, layer {layer}"
            return
        if layer in LEADERS:
            picked = [[draw.randint(-1, position) for _ in range(TOP_K)] for position in range(item.start, item.end)]
            self._picked = torch.tensor(picked, dtype=torch.int32)
        found, valid = kv.selected_rows(layer, self._picked if layer in LEADERS else None)
        assert torch.equal(valid, self._picked >= 0), f"S1: state row {item.row}, layer {layer}: a row is nowhere"
        want = rows[self._picked.clamp(min=0).long()] * valid[..., None]
        assert torch.equal(found, want), f"S1: picked rows of state row {item.row}, layer {layer}"

    def arrived(self, page: ImportPage, tags: tuple[int, ...]) -> None:
        """A transport writes a page's rows to the host, and its index keys to the GPU."""
        for layer in range(LAYERS):
            if page.host_block != NO_HOST_BLOCK:
                first = page.host_block * BLOCK
                self.host_pool.layer_rows(layer)[first : first + len(tags)] = spelt(tags, layer)
            if layer in LEADERS:
                block = page.indexer_blocks[self.layout.index_group_of(layer)]
                keys = spelt(tags, INDEX_LAYER + layer, INDEX_WIDTH)
                self.kv_pool.index_rows(layer)[block, : len(tags)] = keys

    def wipe(self, gpu: list[int], host: list[int]) -> None:
        """Blank blocks hold what nobody may read."""
        self._gpu_blocks[torch.tensor(gpu, dtype=torch.long)] = NAN
        rows = torch.tensor([block * BLOCK + offset for block in host for offset in range(BLOCK)], dtype=torch.long)
        for unit in range(len(self.layout.units)):
            self.host_pool.unit_tensor(unit)[rows] = NAN


class RealRank(Rank):
    """Says what the worker reports, which must be what a rank of tags has done."""

    def __init__(self, of_tags: Rank, memory: RealMemory) -> None:
        super().__init__(**vars(of_tags))
        self._memory = memory
        self._jobs: deque[int] = deque()  # of each step that has run
        self._enqueued: set[Fact] = set()

    def run(self) -> list[Fact]:
        self._jobs.append(len(self.stream[0].jobs))
        facts = super().run()
        ended = self._poll()
        assert not ended, f"the worker reports {ended} of a step that has not ended"
        assert set(facts) <= self._enqueued, f"the worker has not reported all of {facts}"
        return facts

    def arrive(self) -> list[Fact]:
        facts = [fact for _ in range(self._jobs.popleft()) for fact in super(RealRank, self).arrive()]
        self._memory.gates.popleft().open = True
        ended = self._poll()
        assert sorted(facts) == sorted(ended), f"the worker reports {ended} of a step that did {facts}"
        return facts

    def _poll(self) -> list[Fact]:
        """What has ended since the last time."""
        ended: list[Fact] = []
        for report in self._memory.worker.poll():
            self._enqueued |= {self._fact("enqueued", number) for number in report.enqueued}
            ended += [self._fact("completed", number) for number in report.completed]
            ended += [self._fact("copied", number) for number in report.copied]
            ended += [self._fact("mirrored", number, counts) for number, counts in report.mirrored.items()]
            assert not report.failed, f"copies failed: {report.failed}"
        return ended


class RealWorld(World):
    memory: RealMemory

    def _power_on(self) -> None:
        super()._power_on()
        self.memory = RealMemory(self.setup, self.epoch)
        self.ranks = [RealRank(self.ranks[0], self.memory)]

    def wipe_blank(self) -> None:
        super().wipe_blank()
        pools = self.c._state
        self.memory.wipe(list(pools.gpu.blank_blocks()), list(pools.host.blank_blocks()))

    def arrive(self, rank: int, jobs: int = 1) -> None:
        """A step ends, with all its copies: the worker's events tell no more than that."""
        self.facts += self.ranks[rank].arrive()

    def import_write(self, name: str) -> None:
        arrival = self.arrivals[name]
        page = arrival.started.pages[arrival.written]
        super().import_write(name)
        first = page.page * BLOCK
        tags = self.tags(arrival.player.slot, min(first + BLOCK, arrival.tokens))[first:]
        self.memory.arrived(page, tags)
