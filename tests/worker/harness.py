"""Control, played by hand: ids from disjoint shuffled ranges, plans written line by line, and an oracle
that knows what every row must hold without ever looking into a table.

A row of layer l at position p of request r holds numbers that spell (r, l, p), each exact in bfloat16.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hisparse_ops.control.types import (
    NO_HOST_BLOCK,
    GpuBlock,
    HostBlock,
    HotDelta,
    MirrorEnvelope,
    PageTransfer,
    RankReport,
    ResidencyDelta,
    StepPlan,
    TransferId,
    TransferKind,
)
from hisparse_ops.memory.host_pool import HostPool, Shared
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout, ModelSpec, plan_layout
from hisparse_ops.worker import ImmediateStream, SparseKV, Streams, Worker

WIDTH, INDEX_WIDTH = 8, 6
BYTE = 256  # integers up to here are exact in bfloat16
LEADERS = (0, 1, 2, 5)  # units of 1, 1, 3, 2 layers
LAYERS = 7
TOP_K = 6
MAX_QUERY_LEN = 3
STATE_ROWS = 48
FIRST_HOST_BLOCK = 1000  # GPU blocks are numbered below, so a mix-up of the two shows
FIRST_STATE_ROW = 40
INDEX_LAYER = 100  # index keys of leader l are content of layer 100 + l


@dataclass
class Page:
    host: HostBlock
    gpu: tuple[GpuBlock, ...]  # () when it lies on the host alone
    indexer: tuple[GpuBlock, ...]


@dataclass
class Request:
    number: int
    state_row: int
    pages: list[Page] = field(default_factory=list)
    hot: tuple[tuple[GpuBlock, ...], ...] = ()
    tokens: int = 0
    version: int = 0  # of the content: a rewritten row spells another one


def small_layout(block_size: int, dtype: torch.dtype, host_pages: int = 60, gpu_blocks: int = 400) -> Layout:
    spec = ModelSpec(
        LAYERS,
        LEADERS,
        row_bytes=WIDTH * dtype.itemsize,
        index_row_bytes=INDEX_WIDTH * dtype.itemsize,
        block_size=block_size,
        top_k=TOP_K,
        max_query_len=MAX_QUERY_LEN,
    )
    roomy = plan_layout(spec, 2**30, 0)
    host_bytes = (FIRST_HOST_BLOCK + host_pages) * roomy.host_block_bytes if host_pages else 0
    return plan_layout(spec, gpu_blocks * roomy.block_bytes, host_bytes)


class Rig:
    """A worker with its pools, and the free ids that plans are made of."""

    def __init__(
        self,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        *,
        with_host: bool = True,
        streams: Streams | None = None,
        epoch: int = 0,
        rank: int = 0,
        max_pages: int = 50,
        staging_pages: int = 50,
        shared: Shared | None = None,
        device: str = "cpu",
    ) -> None:
        self.layout = small_layout(block_size, dtype, host_pages=60 if with_host else 0)
        self.kv_pool = KVPool(self.layout, dtype, device)
        self.kv_pool.storage[self.layout.block_bytes // dtype.itemsize :] = float("nan")  # nobody may read that
        self.host_pool = HostPool(self.layout, dtype, shared=shared) if with_host else None
        self.worker = Worker(
            self.layout,
            self.kv_pool,
            self.host_pool,
            state_rows=STATE_ROWS,
            max_pages=max_pages,
            rank=rank,
            epoch=epoch,
            staging_pages=staging_pages,
            streams=streams,
        )
        self.epoch = epoch
        self.free_gpu = [GpuBlock(block) for block in range(1, self.layout.num_blocks)]
        self.free_host = [HostBlock(block) for block in range(FIRST_HOST_BLOCK, self.layout.host_blocks)]
        self.leased_host: list[HostBlock] = []  # every lease so far; who reuses blocks empties it step by step
        self.free_rows = list(range(FIRST_STATE_ROW, STATE_ROWS))
        shuffle = random.Random(7).shuffle
        for ids in (self.free_gpu, self.free_host, self.free_rows):
            shuffle(ids)
        self.truth: dict[tuple[int, int, int], torch.Tensor] = {}  # (request, position, layer) -> row
        self._sequence = itertools.count(1)
        self._transfer = itertools.count(500)
        self._request = itertools.count(11)

    # Ids.

    def request(self) -> Request:
        return Request(next(self._request), self.free_rows.pop())

    def gpu_blocks(self, count: int) -> tuple[GpuBlock, ...]:
        return tuple(self.free_gpu.pop() for _ in range(count))

    def host_block(self) -> HostBlock:
        if self.host_pool is None:
            return NO_HOST_BLOCK
        self.leased_host.append(self.free_host.pop())
        return self.leased_host[-1]

    def transfer(self, kind: TransferKind, page: Page, moves_data: bool = True) -> PageTransfer:
        return PageTransfer(TransferId(next(self._transfer)), kind, page.host, page.gpu, moves_data)

    # Pieces of plans.

    def plan(self, **parts: object) -> StepPlan:
        return StepPlan(next(self._sequence), self.epoch, **parts)  # type: ignore[arg-type]

    def delta(self, request: Request, number: int) -> ResidencyDelta:
        page = request.pages[number]
        return ResidencyDelta(request.state_row, number, page.host, page.gpu, page.indexer)

    def grow(self, request: Request, tokens: int) -> tuple[ResidencyDelta, ...]:
        """Resident pages for so many tokens."""
        first = len(request.pages)
        for _ in range(first, self.layout.pages(tokens)):
            gpu = self.gpu_blocks(self.layout.num_groups)
            request.pages.append(Page(self.host_block(), gpu, self.gpu_blocks(self.layout.num_indexer_groups)))
        request.tokens = tokens
        return tuple(self.delta(request, number) for number in range(first, len(request.pages)))

    def drop(self, request: Request, *numbers: int) -> tuple[ResidencyDelta, ...]:
        """The pages lie on the host alone; their GPU blocks hold NaN from now on."""
        for number in numbers:
            for block in request.pages[number].gpu:
                self.kv_pool.storage.view(self.layout.num_blocks, -1)[block] = float("nan")
            self.free_gpu[:0] = request.pages[number].gpu
            request.pages[number].gpu = ()
        return tuple(self.delta(request, number) for number in numbers)

    def grant_hot(self, request: Request) -> tuple[HotDelta, ...]:
        request.hot = tuple(self.gpu_blocks(self.layout.hot_blocks) for _ in range(self.layout.num_groups))
        return self.hot_delta(request)

    def hot_delta(self, request: Request) -> tuple[HotDelta, ...]:
        return (HotDelta(request.state_row, request.hot),)

    def restore(self, request: Request, number: int) -> tuple[ResidencyDelta, PageTransfer]:
        request.pages[number].gpu = self.gpu_blocks(self.layout.num_groups)
        return self.delta(request, number), self.transfer(TransferKind.RESTORE, request.pages[number])

    # Content.

    def rows(self, request: Request, layer: int, positions: Sequence[int], width: int = WIDTH) -> torch.Tensor:
        rows = [
            ([request.number, layer, position // BYTE, position % BYTE, request.version, 1] + [3] * width)[:width]
            for position in positions
        ]
        return torch.tensor(rows, dtype=self.kv_pool.dtype, device=self.kv_pool.device)

    def fill(self, kv: SparseKV, request: Request, layers: Sequence[int] = range(LAYERS)) -> None:
        """The new tokens' rows of these layers, and index keys of the leaders among them, into the pools
        and into the oracle."""
        positions = range(kv.start, kv.context)
        for layer in layers:
            rows = self.rows(request, layer, positions)
            kv.write(layer, rows)
            self._remember(request, layer, positions, rows)
            if layer in LEADERS:
                keys = self.rows(request, INDEX_LAYER + layer, positions, INDEX_WIDTH)
                kv.write_index(layer, keys)
                self._remember(request, INDEX_LAYER + layer, positions, keys)

    def _remember(self, request: Request, layer: int, positions: Sequence[int], rows: torch.Tensor) -> None:
        self.truth.update({(request.number, p, layer): row for p, row in zip(positions, rows, strict=True)})

    def expected(self, request: Request, layer: int, positions: Sequence[int]) -> torch.Tensor:
        return torch.stack([self.truth[request.number, position, layer] for position in positions])

    # Whole steps.

    def compute(self, request: Request, start: int, end: int, **parts: object) -> list[RankReport]:
        """A step that writes and mirrors rows `start .. end-1` of a request."""
        residency = (*self.grow(request, max(end, request.tokens)), *parts.pop("residency", ()))  # type: ignore[misc]
        envelopes = (MirrorEnvelope(request.state_row, start, end),) if self.host_pool else ()
        self.worker.begin_step(self.plan(residency=residency, envelopes=envelopes, **parts))
        self.fill(self.worker.kv(request.state_row, start, end - start, prefill=True), request)
        self.worker.end_step()
        return self.worker.poll()

    def idle(self, **parts: object) -> list[RankReport]:
        """A step in which nothing is computed."""
        self.worker.begin_step(self.plan(**parts))
        self.worker.end_step()
        return self.worker.poll()

    def host_page(self, page: Page, layer: int) -> torch.Tensor:
        """The bytes of a host block, [block_size, width]."""
        assert self.host_pool is not None
        size = self.layout.block_size
        return self.host_pool.layer_rows(layer)[page.host * size : (page.host + 1) * size]

    def gpu_page(self, page: Page, layer: int) -> torch.Tensor:
        """The bytes of a layer's resident block, [block_size, width]."""
        first = page.gpu[self.layout.group_of(layer)] * self.layout.block_stride
        return self.kv_pool.layer_rows(layer)[first : first + self.layout.block_size]

    # Reading back.

    def check_selected(self, kv: SparseKV, request: Request, topk: list[list[int]]) -> None:
        """Every layer's selected rows against the oracle; what is not valid is zeros."""
        picked = torch.tensor(topk, dtype=torch.int32, device=self.kv_pool.device)
        for layer in range(LAYERS):
            rows, valid = kv.selected_rows(layer, picked if layer in LEADERS else None)
            assert rows.shape == (*picked.shape, WIDTH)
            assert torch.equal(valid, picked >= 0), f"layer {layer}: {valid} for {picked}"
            for row, position in zip(rows.flatten(0, 1), picked.flatten().tolist(), strict=True):
                want = self.truth[request.number, position, layer] if position >= 0 else torch.zeros_like(row)
                assert torch.equal(row, want), f"layer {layer}, position {position}: {row} is not {want}"

    def check_context(self, kv: SparseKV, request: Request) -> None:
        """Every layer's dense context, and all index keys, against the oracle."""
        for layer in range(LAYERS):
            assert torch.equal(kv.context_rows(layer), self.expected(request, layer, range(kv.context)))
        self.check_index(kv, request)

    def check_index(self, kv: SparseKV, request: Request) -> None:
        for leader in LEADERS:
            want = self.expected(request, INDEX_LAYER + leader, range(kv.context))
            assert torch.equal(kv.index_rows(leader), want)

    def read_first_rows(self, request: Request) -> None:
        """A step that decodes one token, which attends to the first rows of the request."""
        self.worker.begin_step(self.plan(residency=self.grow(request, request.tokens + 1)))
        kv = self.worker.kv(request.state_row, request.tokens - 1, 1, prefill=False)
        self.fill(kv, request)
        self.check_selected(kv, request, [[0, 1, 2, -1]])
        self.worker.end_step()

    def cached_in_hot_slots(self) -> Request:
        """A request whose first page lies on the host alone, its first rows in hot slots too."""
        request = self.request()
        self.compute(request, 0, 40)
        self.idle(hot=self.grant_hot(request), residency=self.drop(request, 0))
        self.read_first_rows(request)
        return request

    def close(self) -> None:
        if self.host_pool is not None:
            self.host_pool.close()


def only(reports: list[RankReport]) -> RankReport:
    assert len(reports) == 1
    return reports[0]


def broken(*arguments: object) -> None:
    """In the place of an op: a copy that fails."""
    raise RuntimeError("the link is down")


class HeldStream(ImmediateStream):
    """Its work is done at once, but its events say so only when the test does, in any order."""

    class Mark:
        def __init__(self) -> None:
            self.is_done = False

        def query(self) -> bool:
            return self.is_done

    def __init__(self) -> None:
        self.marks: list[HeldStream.Mark] = []

    def record(self) -> Mark:
        self.marks.append(HeldStream.Mark())
        return self.marks[-1]
