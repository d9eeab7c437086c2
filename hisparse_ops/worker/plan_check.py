"""Whether a plan speaks of things that the worker has. Asked before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hisparse_ops.control.types import StepPlan
from hisparse_ops.memory.layout import Layout
from hisparse_ops.worker.errors import PlanError


class PlanChecker:
    """Knows the bounds of one worker. `check` raises `PlanError` naming what is out of bounds."""

    def __init__(self, layout: Layout, state_rows: int, max_pages: int, has_host: bool) -> None:
        self._layout = layout
        self._state_rows = state_rows
        self._max_pages = max_pages
        self._host_blocks = layout.host_blocks if has_host else 0

    def check(self, plan: StepPlan) -> None:
        self._below("cleared_rows", plan.cleared_rows, self._state_rows)
        self._below("recycled", plan.recycled, self._host_blocks, first=1)
        self._check_hot(plan)
        self._check_residency(plan)
        self._check_moves(plan)
        self._check_envelopes(plan)

    @staticmethod
    def _below(name: str, values: Iterable[int], end: int, first: int = 0) -> None:
        for value in values:
            if not first <= value < end:
                raise PlanError(f"{name}: {value} is not one of {first}..{end - 1}")

    @staticmethod
    def _one_each(name: str, values: tuple[object, ...], count: int, of: str) -> None:
        if len(values) != count:
            raise PlanError(f"{name}: {len(values)} entries, one for each of {count} {of} expected")

    def _check_hot(self, plan: StepPlan) -> None:
        layout = self._layout
        self._below("hot.state_row", (delta.state_row for delta in plan.hot), self._state_rows)
        for delta in plan.hot:
            if delta.blocks:
                self._one_each("hot.blocks", delta.blocks, layout.num_groups, "groups")
            for region in delta.blocks:
                self._one_each("hot.blocks", region, layout.hot_blocks, "blocks of a hot region")
                self._below("hot.blocks", region, layout.num_blocks, first=1)

    def _check_residency(self, plan: StepPlan) -> None:
        layout = self._layout
        for delta in plan.residency:
            self._below("residency.state_row", [delta.state_row], self._state_rows)
            self._below("residency.page", [delta.page], self._max_pages)
            if delta.host_block:
                self._below("residency.host_block", [delta.host_block], self._host_blocks)
            if delta.gpu_blocks:
                self._one_each("residency.gpu_blocks", delta.gpu_blocks, layout.num_groups, "groups")
                self._below("residency.gpu_blocks", delta.gpu_blocks, layout.num_blocks, first=1)
            if delta.host_block or delta.gpu_blocks or delta.indexer_blocks:  # a page has its index keys for life
                expected = layout.num_indexer_groups
                self._one_each("residency.indexer_blocks", delta.indexer_blocks, expected, "indexer groups")
                self._below("residency.indexer_blocks", delta.indexer_blocks, layout.num_blocks, first=1)

    def _check_moves(self, plan: StepPlan) -> None:
        layout = self._layout
        for copy in plan.copies:
            self._below("copies", [copy.source, copy.destination], self._host_blocks, first=1)
        for transfer in plan.transfers:
            self._below("transfers.host_block", [transfer.host_block], self._host_blocks, first=1)
            self._one_each("transfers.gpu_blocks", transfer.gpu_blocks, layout.num_groups, "groups")
            self._below("transfers.gpu_blocks", transfer.gpu_blocks, layout.num_blocks, first=1)

    def _check_envelopes(self, plan: StepPlan) -> None:
        capacity = self._max_pages * self._layout.block_size
        if plan.envelopes and not self._host_blocks:
            raise PlanError("envelopes: this worker has no host pool to mirror to")
        for envelope in plan.envelopes:
            self._below("envelopes.state_row", [envelope.state_row], self._state_rows)
            if not 0 <= envelope.start <= envelope.end <= capacity:
                raise PlanError(f"envelopes: rows {envelope.start}..{envelope.end} are not within 0..{capacity}")
        ordered = sorted(plan.envelopes)
        for before, after in pairwise(ordered):
            if before.state_row == after.state_row and after.start < before.end:
                raise PlanError(f"envelopes: two of state row {after.state_row} overlap at row {after.start}")
