"""Where every page of every state row lies: the tables that the ops read.

| tensor | shape | entry |
|---|---|---|
| host | [S, P] | host block of the page |
| resident | [G, S, P] | the page's GPU block in each group |
| hot | [G, S, Q] | GPU blocks of the hot region in each group |
| indexer | [Gi, S, P] | the page's GPU block in each indexer group |

0 = none. S state rows, P pages, G groups, Q hot blocks, Gi indexer groups. They change only by what a plan
says, in stream order. What the CPU must know of them without waiting for the device is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from hisparse_ops.control.types import HotDelta, ResidencyDelta
from hisparse_ops.hot_state import Tables
from hisparse_ops.memory.layout import Layout
from hisparse_ops.worker.errors import UnreadableError
from hisparse_ops.worker.indices import index_tensor


class PageTables:
    """Owns the tables of one worker."""

    def __init__(self, layout: Layout, state_rows: int, max_pages: int, device: torch.device) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._layout = layout
        self.max_pages = max_pages
        self.host = zeros(state_rows, max_pages)
        self.resident = zeros(layout.num_groups, state_rows, max_pages)
        self.hot = zeros(layout.num_groups, state_rows, layout.hot_blocks)
        self.indexer = zeros(layout.num_indexer_groups, state_rows, max_pages)
        # A page is resident in all groups or in none, and block ids are unique across groups: the block of
        # the first group stands for the page.
        self._known_host = torch.zeros(state_rows, max_pages, dtype=torch.int32)
        self._known_resident = torch.zeros(state_rows, max_pages, dtype=torch.int32)
        self.rows_with_hot_region: set[int] = set()

    @property
    def bytes(self) -> int:
        """Device bytes of all tables."""
        return sum(table.nbytes for table in (self.host, self.resident, self.hot, self.indexer))

    def of_group(self, group: int) -> Tables:
        """What `resolve` reads for the units of a group."""
        layout = self._layout
        return Tables(self.host, self.resident[group], self.hot[group], layout.block_size, layout.block_stride)

    def clear(self, rows: Sequence[int]) -> None:
        """Empties every line of these state rows: they changed hands."""
        if not rows:
            return
        index = index_tensor(rows, self.host.device)
        self.host.index_fill_(0, index.long(), 0)
        for table in (self.resident, self.hot, self.indexer):
            table.index_fill_(1, index.long(), 0)
        self._known_host[list(rows)] = 0
        self._known_resident[list(rows)] = 0
        self.rows_with_hot_region.difference_update(rows)

    def set_hot(self, deltas: Iterable[HotDelta]) -> None:
        """Grants and takes back hot regions; of two words about a state row the last counts."""
        last = {delta.state_row: delta.blocks for delta in deltas}
        if not last:
            return
        groups, size = self._layout.num_groups, self._layout.hot_blocks
        nothing = ((0,) * size,) * groups
        entries = [block for blocks in last.values() for region in blocks or nothing for block in region]
        rows = index_tensor(list(last), self.hot.device).long()
        regions = index_tensor(entries, self.hot.device).view(len(last), groups, size)
        self.hot.index_copy_(1, rows, regions.transpose(0, 1))
        for row, blocks in last.items():
            (self.rows_with_hot_region.add if blocks else self.rows_with_hot_region.discard)(row)

    def set_pages(self, deltas: Iterable[ResidencyDelta]) -> None:
        """Writes lines of the page tables, one scatter per table; of two words about a page the last counts."""
        last = {(delta.state_row, delta.page): delta for delta in deltas}
        if not last:
            return
        no_blocks = (0,) * self._layout.num_groups
        no_index_blocks = (0,) * self._layout.num_indexer_groups
        lines = [
            (row, page, delta.host_block, *(delta.gpu_blocks or no_blocks), *(delta.indexer_blocks or no_index_blocks))
            for (row, page), delta in last.items()
        ]
        known = torch.tensor(lines, dtype=torch.int32).T.contiguous()
        columns = index_tensor(lines, self.host.device).T
        rows, pages = columns[0].long(), columns[1].long()
        self.host[rows, pages] = columns[2]
        self.resident[:, rows, pages] = columns[3 : 3 + len(no_blocks)]
        self.indexer[:, rows, pages] = columns[3 + len(no_blocks) :]
        self._known_host[known[0].long(), known[1].long()] = known[2]
        self._known_resident[known[0].long(), known[1].long()] = known[3]

    def lose_gpu_copies(self, blocks: Sequence[int]) -> None:
        """Unmaps the pages of these GPU blocks (of any group): their bytes never arrived."""
        _forget(self.resident, blocks)
        _forget(self._known_resident, blocks)

    def lose_host_copies(self, blocks: Sequence[int]) -> None:
        """Unmaps the pages of these host blocks: their bytes never arrived."""
        _forget(self.host, blocks)
        _forget(self._known_host, blocks)

    def host_only_pages(self, state_row: int, pages: int) -> int:
        """How many of the first pages lie on the host alone."""
        return int((self._known_resident[state_row, :pages] == 0).sum())

    def check_writable(self, state_row: int, start: int, end: int) -> None:
        """Raises `UnreadableError` unless rows `start .. end-1` have resident blocks to be written to."""
        first, last = start // self._layout.block_size, self._layout.pages(end)
        missing = (self._known_resident[state_row, first:last] == 0).nonzero()
        if len(missing):
            page = first + int(missing[0])
            raise UnreadableError(f"state row {state_row}: page {page} has no resident block to write to")

    def check_readable(self, state_row: int, context: int, hot_region_needed: bool) -> None:
        """Raises `UnreadableError` unless every page below `context` is mapped, and a hot region is there
        if pages on the host alone are to be read through one."""
        pages = self._layout.pages(context)
        host_only = self._known_resident[state_row, :pages] == 0
        nowhere = (host_only & (self._known_host[state_row, :pages] == 0)).nonzero()
        if len(nowhere):
            raise UnreadableError(f"state row {state_row}: page {int(nowhere[0])} is neither resident nor on the host")
        if hot_region_needed and state_row not in self.rows_with_hot_region and bool(host_only.any()):
            raise UnreadableError(
                f"state row {state_row}: page {int(host_only.nonzero()[0])} is on the host alone, and there is no hot "
                f"region to read it through"
            )


def _forget(table: torch.Tensor, blocks: Sequence[int]) -> None:
    table.masked_fill_(torch.isin(table, index_tensor(blocks, table.device)), 0)
