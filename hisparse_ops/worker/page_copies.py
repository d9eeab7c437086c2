"""Whole pages on their way: restores, spills, and copy-on-write inside the host pool.

All of a step's pages go in one call per group (per unit on the host), on the copy stream; what waits for what
is said in `streams.py`. A call that raises has moved an unknown part, so all pages of the call have failed:
their ids are returned, never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from hisparse_ops import ops
from hisparse_ops.control.types import BlockCopy, PageTransfer
from hisparse_ops.memory.views import HostViews
from hisparse_ops.worker.indices import index_tensor
from hisparse_ops.worker.store import Store
from hisparse_ops.worker.streams import Event, Streams

_log = logging.getLogger(__name__)


class PageCopies:
    """Moves pages between the pools of a worker that has a host pool. Each kind of copy answers whether all
    of it was issued."""

    def __init__(self, store: Store, host: HostViews, streams: Streams) -> None:
        self._store = store
        self._host = host
        self._streams = streams
        self._spilling: list[tuple[frozenset[int], Event]] = []  # GPU blocks read, until the event

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Copies issued inside run after all compute issued before, and before all that follows."""
        compute, copy = self._streams
        copy.wait(compute.record())
        with copy.current():
            yield
        compute.wait(copy.record())

    def give_away(self, gpu_blocks: Iterable[int]) -> None:
        """These blocks may have new owners: compute from now on waits for the spills that still read them."""
        self._spilling = [(blocks, event) for blocks, event in self._spilling if not event.query()]
        given = set(gpu_blocks) if self._spilling else set()
        for blocks, event in self._spilling:
            if not given.isdisjoint(blocks):
                self._streams.compute.wait(event)

    def restore(self, transfers: Sequence[PageTransfer]) -> bool:
        """Host pages to resident blocks, all layers. Inside `ahead`."""
        size, stride = self._store.layout.block_size, self._store.layout.block_stride

        def copy(group: int, host_blocks: torch.Tensor, gpu_blocks: torch.Tensor) -> None:
            source, target = self._store.host_rows(self._host, group), self._store.device_rows(group)
            ops.copy_blocks(source, target, host_blocks, gpu_blocks, size, size, stride)

        return self._each_group("restore", transfers, copy)

    def spill(self, transfers: Sequence[PageTransfer]) -> tuple[bool, Event]:
        """Resident blocks to host pages, all layers, as compute issued so far leaves them. Also the event
        behind the copies, and so behind that compute."""
        size, stride = self._store.layout.block_size, self._store.layout.block_stride

        def copy(group: int, host_blocks: torch.Tensor, gpu_blocks: torch.Tensor) -> None:
            source, target = self._store.device_rows(group), self._store.host_rows(self._host, group)
            ops.copy_blocks(source, target, gpu_blocks, host_blocks, size, stride, size)

        compute, copies = self._streams
        copies.wait(compute.record())
        with copies.current():
            issued = self._each_group("spill", transfers, copy)
        event = copies.record()
        blocks = frozenset(block for transfer in transfers for block in transfer.gpu_blocks)
        self._spilling.append((blocks, event))
        return issued, event

    def copy_on_write(self, copies: Sequence[BlockCopy]) -> bool:
        """Host blocks to host blocks. A page of a unit is one piece there, so its layers go as one. Inside `ahead`."""
        layout = self._store.layout

        def copy() -> None:
            blocks = index_tensor([[c.source for c in copies], [c.destination for c in copies]], self._store.device)
            for unit in range(len(layout.units)):
                rows = [self._host.unit_tensor(unit)]
                size = layout.block_size
                ops.copy_blocks(rows, rows, blocks[0], blocks[1], size, size, size)

        return _attempt("copy-on-write", copy) if copies else True

    def _each_group(
        self,
        what: str,
        transfers: Sequence[PageTransfer],
        copy: Callable[[int, torch.Tensor, torch.Tensor], None],
    ) -> bool:
        def copy_all() -> None:
            device = self._store.device
            host_blocks = index_tensor([transfer.host_block for transfer in transfers], device)
            gpu_blocks = index_tensor([transfer.gpu_blocks for transfer in transfers], device).T.contiguous()
            for group, blocks in enumerate(gpu_blocks.unbind(0)):
                copy(group, host_blocks, blocks)

        return _attempt(what, copy_all) if transfers else True


def _attempt(what: str, copy: Callable[[], None]) -> bool:
    try:
        copy()
    except Exception:  # whatever it was, the pages did not arrive: that is what control must hear
        _log.exception("%s failed", what)
        return False
    return True
