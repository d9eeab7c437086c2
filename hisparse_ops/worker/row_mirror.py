"""The row mirror: what a step wrote on the device goes to its host rows in the same step.

A row counts as mirrored if it lies in an envelope, every layer of it was written to a resident block, and it
has a host row. All of that is decided on the device, from the rows that were translated there: that Python
code has run proves nothing. A row that does not count is not copied in any group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from hisparse_ops import ops
from hisparse_ops.control.types import MirrorEnvelope
from hisparse_ops.memory.views import HostViews
from hisparse_ops.worker.indices import index_tensor
from hisparse_ops.worker.sparse_kv import SparseKV
from hisparse_ops.worker.store import Store

_log = logging.getLogger(__name__)


class RowMirror:
    """Mirrors the rows of one worker that has a host pool."""

    def __init__(self, store: Store, host: HostViews) -> None:
        self._store = store
        self._host = host

    def run(self, envelopes: Sequence[MirrorEnvelope], passes: Mapping[int, Sequence[SparseKV]]) -> torch.Tensor:
        """Copies the rows that the forward `passes` of each state row wrote inside the envelopes.

        Returns [len(envelopes)] int64 on the device: rows copied for each. Zeros if copying raised, since
        it is unknown what arrived.
        """
        counts = torch.zeros(len(envelopes), dtype=torch.int64, device=self._store.device)
        try:
            return self._copy(envelopes, passes, counts.clone())
        except Exception:  # control must hear that nothing is proved; the model's own rows are whole
            _log.exception("row mirror failed")
            return counts

    def _copy(
        self, envelopes: Sequence[MirrorEnvelope], passes: Mapping[int, Sequence[SparseKV]], counts: torch.Tensor
    ) -> torch.Tensor:
        lines: list[tuple[int, int, int]] = []  # position, state row, envelope
        written: list[torch.Tensor] = []
        for number, (state_row, start, end) in enumerate(envelopes):
            for kv in passes.get(state_row, ()):
                first, last = max(start, kv.start), min(end, kv.context)
                if first < last:
                    lines.extend((position, state_row, number) for position in range(first, last))
                    written.append(kv.layers_written[first - kv.start : last - kv.start])
        if not lines:
            return counts

        store, tables, layout = self._store, self._store.tables, self._store.layout
        positions, state_rows, owners = index_tensor(lines, store.device).T.contiguous().unbind(0)
        size, stride = layout.block_size, layout.block_stride
        host_rows = ops.translate(positions, state_rows, tables.host, size, size)
        counted = (torch.cat(written) == layout.spec.num_layers) & (host_rows >= 0)
        host_rows = host_rows.masked_fill(~counted, -1)
        for group, table in enumerate(tables.resident.unbind(0)):
            rows = ops.translate(positions, state_rows, table, size, stride)
            ops.mirror_rows(store.device_rows(group), store.host_rows(self._host, group), rows, host_rows)
        if not tables.rows_with_hot_region.isdisjoint(envelope.state_row for envelope in envelopes):
            for state in store.hot_states:  # a slot that cached one of these rows holds its old bytes
                ops.invalidate(state.slot_rows, state_rows, host_rows)
        return counts.index_add_(0, owners, counted.long())
