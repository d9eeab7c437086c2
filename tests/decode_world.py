"""Requests that decode from their first token on, over pools in which every page has its blocks from the start.

`offload` gives full pages up as decoding goes on: their rows were mirrored by the step that wrote them, so forgetting
the resident block is all it takes. The block is poisoned then: whoever still reads it reads NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from hisparse_ops import HostPool, KVPool
from hisparse_ops.memory.layout import plan_layout
from hisparse_ops.models import Decoded, Decoder, DecoderConfig, DecodeStep, StepTables

BLOCK = 8
CONFIG = DecoderConfig(
    vocab_size=64, hidden=64, layers=4, unit_layers=2, heads=4, mlp=64, top_k=16, latent_dim=40, rope_dim=8
)
PAGES = 12
STEPS = PAGES * BLOCK
HOT_SLOTS = 24
SPARE_STATES = 2
KEPT = 0.3  # of the full pages stay resident with `offload`

Call = Callable[[Tensor, Tensor, Tensor], Decoded]


class DecodeWorld:
    """A decode step and the batches it is given. The batch holds `requests` places; request r joins at step r.
    `spare_blocks` that nobody uses make both pools larger."""

    def __init__(self, device: str, requests: int, dtype: torch.dtype = torch.float32, spare_blocks: int = 0) -> None:
        self.requests, self.device = requests, device
        states = requests + SPARE_STATES
        spec = CONFIG.spec(dtype, BLOCK, HOT_SLOTS)
        sizes = plan_layout(spec, 1 << 30, 0)
        per_state = sizes.request_blocks(STEPS) + sizes.hot_region_blocks
        blocks = 1 + states * per_state + spare_blocks
        host_blocks = 1 + states * PAGES + spare_blocks
        layout = plan_layout(spec, blocks * sizes.block_bytes, host_blocks * sizes.host_block_bytes)
        self.layout = layout
        self.draw = torch.Generator().manual_seed(3)
        self.kv_pool = KVPool(layout, dtype, device)
        self.host_pool = HostPool(layout, dtype, pin=device == "cuda")
        self.state_rows = torch.randperm(states, generator=self.draw)[:requests].int()
        self.every_page = self._tables(states)
        self.tables = StepTables(*(table.clone() for table in self.every_page))
        host = self.host_pool.device_view() if device == "cuda" else self.host_pool.views
        self.step = DecodeStep(Decoder(CONFIG).to(device, dtype), self.kv_pool, host, self.tables)

    def _tables(self, states: int) -> StepTables:
        layout = self.layout
        shapes = [
            (layout.num_groups, states, PAGES),
            (layout.num_groups, states, layout.hot_blocks),
            (layout.num_indexer_groups, states, PAGES),
        ]
        sizes = [groups * rows * columns for groups, rows, columns in shapes]
        ids = (1 + torch.randperm(layout.num_blocks - 1, generator=self.draw)).int()[: sum(sizes)]
        host = (1 + torch.randperm(states * PAGES, generator=self.draw)).int().view(states, PAGES)
        device = [part.view(shape) for part, shape in zip(ids.split(sizes), shapes, strict=True)]
        return StepTables(*(table.to(self.device) for table in (host, *device)))

    def restart(self) -> None:
        """Everything as at first: pages mapped, hot slots empty, pools of rubbish."""
        if self.device == "cuda":
            torch.cuda.synchronize()  # a step before may still mirror its rows
        with torch.no_grad():
            self.kv_pool.storage[self.layout.block_bytes // self.kv_pool.dtype.itemsize :] = torch.nan
            for unit in range(len(self.layout.units)):
                self.host_pool.unit_tensor(unit).fill_(torch.nan)
            for table, first in zip(self.tables, self.every_page, strict=True):
                table.copy_(first)
            for state in self.step.hot_states:
                state.slot_rows.fill_(-1)
                for buffer in (state.slot_stamps, state.clock, state.counters):
                    buffer.zero_()

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens, positions and state rows of each step: the same in every run."""
        draw = torch.Generator().manual_seed(4)
        for number in range(STEPS):
            tokens = torch.randint(CONFIG.vocab_size, (self.requests,), generator=draw)
            positions = number - torch.arange(self.requests, dtype=torch.int32)
            states = torch.where(positions >= 0, self.state_rows, -1)
            yield tuple(t.to(self.device) for t in (tokens, positions.clamp(min=0), states))

    def run(self, call: Call, offload: bool, steps: int = STEPS) -> list[Decoded]:
        """Decodes one token a step from an empty start. Outputs of padding places are left out."""
        self.restart()
        draw = torch.Generator().manual_seed(5)
        found = []
        for number, batch in enumerate(islice(self.batches(), steps)):
            with torch.no_grad():
                logits, topk = call(*batch)
            live = min(number + 1, self.requests)
            found.append(Decoded(logits[:live].clone(), topk[:, :live].clone()))
            for place in range(live if offload else 0):
                page, last = divmod(number - place, BLOCK)
                if last == BLOCK - 1 and torch.rand((), generator=draw) > KEPT:
                    self.give_up(int(self.state_rows[place]), page)
        return found

    def give_up(self, state_row: int, page: int) -> None:
        blocks = self.tables.resident[:, state_row, page].tolist()
        for block in blocks:
            self.kv_pool.storage.view(self.layout.num_blocks, -1)[block] = torch.nan
        self.tables.resident[:, state_row, page] = 0

    def counts(self) -> dict[str, int]:
        totals = [state.counts() for state in self.step.hot_states]
        return {name: sum(unit[name] for unit in totals) for name in totals[0]}

    def close(self) -> None:
        self.host_pool.close()
