"""A forward pass reads the same bytes wherever they lie, and refuses what it cannot serve."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from worker.harness import INDEX_WIDTH, LAYERS, LEADERS, TOP_K, WIDTH, Request, Rig

from hisparse_ops.control.types import MirrorEnvelope
from hisparse_ops.memory.layout import LayoutError
from hisparse_ops.worker import SparseKV, UnreadableError, WorkerOrderError


def history(rig: Rig) -> int:
    """Tokens of more than three pages, the last one not full, and never fewer than 41."""
    return max(41, 3 * rig.layout.block_size + 9)


PLACEMENTS: dict[str, Callable[[int], list[int]]] = {
    "resident": lambda pages: [],
    "mixed": lambda pages: list(range(0, pages - 2, 2)),
    "host": lambda pages: list(range(pages - 2)),
}


def settled(rig: Rig, placement: str) -> Request:
    """A request whose history was computed in two chunks and then lies as `placement` says."""
    request = rig.request()
    rig.compute(request, 0, 7)
    rig.compute(request, 7, history(rig))
    lost = PLACEMENTS[placement](len(request.pages))
    assert bool(lost) == (placement != "resident")
    rig.idle(hot=rig.grant_hot(request) if lost else (), residency=rig.drop(request, *lost))
    return request


def decode(rig: Rig, request: Request, length: int = 1) -> SparseKV:
    """An open step that computes the next rows, all written."""
    start = request.tokens
    residency = rig.grow(request, start + length)
    envelopes = (MirrorEnvelope(request.state_row, start, start + length),)
    rig.worker.begin_step(rig.plan(residency=residency, envelopes=envelopes if rig.host_pool else ()))
    kv = rig.worker.kv(request.state_row, start, length, prefill=False)
    rig.fill(kv, request)
    return kv


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_selected_rows_are_the_rows(any_rig: Rig, placement: str) -> None:
    """Five steps of decoding: repeats that hit, new rows that miss, more rows than a hot region holds."""
    request = settled(any_rig, placement)
    for step in range(5):
        kv = decode(any_rig, request)
        own = kv.context - 1
        any_rig.check_selected(kv, request, [[own, 3, (7 * step) % own, -1, 3, own - 1 - step]])
        any_rig.check_index(kv, request)
        any_rig.worker.end_step()
    assert any_rig.worker.counters()["fault"] == 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_verification_rows_are_the_rows(any_rig: Rig, placement: str) -> None:
    request = settled(any_rig, placement)
    kv = decode(any_rig, request, length=3)
    own = kv.start
    any_rig.check_selected(
        kv, request, [[own, 1, 2, 30, 4, 5], [own + 1, own, 30, 2, 17, -1], [6, 7, 8, 9, own + 2, 12]]
    )
    assert any_rig.worker.counters()["fault"] == 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_context_rows_are_the_rows(any_rig: Rig, placement: str) -> None:
    """A further chunk of prefill, layer after layer as a model runs: write a layer, then read it."""
    rig, request, start = any_rig, settled(any_rig, placement), history(any_rig)
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, start + 9)))
    kv = rig.worker.kv(request.state_row, start, 9, prefill=True)
    assert (kv.start, kv.length, kv.context, kv.prefill, kv.top_k) == (start, 9, start + 9, True, TOP_K)
    assert torch.equal(kv.positions, torch.arange(start, start + 9))
    for layer in range(LAYERS):
        rig.fill(kv, request, [layer])
        assert torch.equal(kv.context_rows(layer), rig.expected(request, layer, range(start + 9)))
    rig.check_context(kv, request)


def test_placements_agree_bit_by_bit() -> None:
    """The same history three times over, on three workers: what a model is given never differs."""
    answers = []
    for placement in PLACEMENTS:
        rig = Rig(dtype=torch.bfloat16)
        kv = decode(rig, settled(rig, placement))
        topk = torch.tensor([[kv.start, 0, 17, 33, -1, 5]], dtype=torch.int32)
        answers.append([kv.selected_rows(layer, topk if layer in LEADERS else None)[0] for layer in range(LAYERS)])
        rig.close()
    for resident, mixed, host in zip(*answers, strict=True):
        assert torch.equal(resident, mixed) and torch.equal(resident, host)


def test_all_requests_of_a_step_keep_to_themselves(rig: Rig) -> None:
    requests = [settled(rig, placement) for placement in ("host", "resident", "mixed", "host")]
    start = history(rig)
    residency = tuple(delta for request in requests for delta in rig.grow(request, start + 1))
    rig.worker.begin_step(rig.plan(residency=residency))
    passes = [rig.worker.kv(request.state_row, start, 1, prefill=False) for request in requests]
    for kv, request in zip(passes, requests, strict=True):
        rig.fill(kv, request)
    for kv, request in zip(passes, requests, strict=True):
        rig.check_selected(kv, request, [[start, 0, 9, 20, 39, 40]])


def test_a_row_is_loaded_once_and_hit_afterwards(rig: Rig) -> None:
    request = settled(rig, "host")
    for step in range(3):
        kv = decode(rig, request)
        rig.check_selected(kv, request, [[kv.start, 0, 1, 2, 3, 3]])
        rig.worker.end_step()
        counters = rig.worker.counters()
        assert counters["miss"] == 4 * len(LEADERS)
        assert counters["hit"] == (1 + 5 * step) * len(LEADERS)
        assert counters["resident"] == (1 + step) * len(LEADERS)
        assert counters["host_bytes_read"] == 4 * LAYERS * rig.layout.spec.row_bytes


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_masked_entry_is_zeros_whatever_the_null_block_holds(rig: Rig, placement: str) -> None:
    """0 times NaN is NaN: a masked entry must not be read from anywhere."""
    request = settled(rig, placement)
    rig.kv_pool.storage.view(rig.layout.num_blocks, -1)[0] = float("nan")
    kv = decode(rig, request)
    rig.check_selected(kv, request, [[-1, 0, -1, kv.start, -1, -1]])


def test_staging_is_counted(rig: Rig) -> None:
    request = settled(rig, "mixed")
    before = rig.worker.counters()["stage_bytes"]
    start = request.tokens
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, start + 1)))
    kv = rig.worker.kv(request.state_row, start, 1, prefill=True)
    rig.fill(kv, request)
    for _ in range(2):  # the second time nothing is copied: the unit is staged
        kv.context_rows(3)
        kv.context_rows(4)
    counters = rig.worker.counters()
    assert counters["stage_bytes"] - before == 4 * 3 * rig.layout.page_bytes
    assert counters["stage_host_bytes"] == 1 * 3 * rig.layout.page_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_full_residency_needs_no_host_pool(dtype: torch.dtype) -> None:
    rig = Rig(dtype=dtype, with_host=False)
    request = settled(rig, "resident")
    kv = decode(rig, request)
    rig.check_selected(kv, request, [[kv.start, 0, 9, 20, -1, 40]])
    rig.worker.end_step()
    start = request.tokens
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, start + 5)))
    kv = rig.worker.kv(request.state_row, start, 5, prefill=True)
    rig.fill(kv, request)
    rig.check_context(kv, request)
    assert not rig.worker.tables.host.any()
    assert rig.worker.counters()["host_bytes"] == 0


# What is refused.


def opened(rig: Rig, prefill: bool, tokens: int = 3) -> tuple[SparseKV, Request]:
    request = rig.request()
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, tokens)))
    return rig.worker.kv(request.state_row, 0, tokens, prefill), request


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_outside_the_model_is_refused(rig: Rig, layer: int) -> None:
    kv, _ = opened(rig, prefill=True)
    with pytest.raises(LayoutError, match="layer"):
        kv.write(layer, torch.zeros(3, WIDTH))
    with pytest.raises(LayoutError, match="layer"):
        kv.context_rows(layer)


@pytest.mark.parametrize("leader", [-1, 3, LAYERS])
def test_only_leaders_have_index_keys(rig: Rig, leader: int) -> None:
    kv, _ = opened(rig, prefill=True)
    with pytest.raises(LayoutError, match="leader"):
        kv.write_index(leader, torch.zeros(3, INDEX_WIDTH))
    with pytest.raises(LayoutError, match="leader"):
        kv.index_rows(leader)


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(2, WIDTH), torch.zeros(3, WIDTH + 1), torch.zeros(3, WIDTH, dtype=torch.float64), torch.zeros(3)],
)
def test_rows_of_another_shape_or_dtype_are_refused_by_name(rig: Rig, rows: torch.Tensor) -> None:
    kv, _ = opened(rig, prefill=True)
    with pytest.raises(ValueError, match="rows must be"):
        kv.write(0, rows)
    with pytest.raises(ValueError, match="rows must be"):
        kv.write_index(0, rows)


@pytest.mark.parametrize(
    "topk",
    [
        torch.zeros(3, 2, dtype=torch.int64),
        torch.zeros(2, 2, dtype=torch.int32),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(3, TOP_K + 1, dtype=torch.int32),
    ],
)
def test_a_wrong_topk_is_refused_by_name(rig: Rig, topk: torch.Tensor) -> None:
    kv, _ = opened(rig, prefill=False)
    with pytest.raises(ValueError, match="topk must be int32"):
        kv.selected_rows(0, topk)


def test_calls_in_another_order_are_refused(rig: Rig) -> None:
    kv, request = opened(rig, prefill=False)
    rig.fill(kv, request, [2])
    topk = torch.zeros(3, 1, dtype=torch.int32)
    with pytest.raises(WorkerOrderError, match="layer 2 was written before"):
        kv.write(2, torch.zeros(3, WIDTH))
    with pytest.raises(WorkerOrderError, match="layer 3 asks before its leader, layer 2"):
        kv.selected_rows(3, None)
    with pytest.raises(WorkerOrderError, match="leader"):
        kv.selected_rows(3, topk)
    with pytest.raises(WorkerOrderError, match="leader"):
        kv.selected_rows(2, None)
    with pytest.raises(WorkerOrderError, match="context_rows is for prefill"):
        kv.context_rows(2)


def test_a_prefill_has_no_selection_and_reads_what_was_written(rig: Rig) -> None:
    kv, _ = opened(rig, prefill=True)
    with pytest.raises(WorkerOrderError, match="selected_rows is for decoding"):
        kv.selected_rows(0, torch.zeros(3, 1, dtype=torch.int32))
    with pytest.raises(WorkerOrderError, match="before its new rows were written"):
        kv.context_rows(0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ((-1, 0, 1, True), "state_row"),
        ((48, 0, 1, True), "state_row"),
        ((40, -1, 1, True), "start"),
        ((40, 0, 0, True), "length"),
        ((40, 799, 2, True), "start and length must name rows within 0..800"),
        ((40, 0, 4, False), "length must be at most max_query_len = 3"),
    ],
)
def test_a_pass_out_of_bounds_is_refused_by_name(rig: Rig, call: tuple[int, int, int, bool], named: str) -> None:
    rig.worker.begin_step(rig.plan())
    with pytest.raises(ValueError, match=named):
        rig.worker.kv(*call)


def test_a_prefill_beyond_the_staging_area_is_refused() -> None:
    rig = Rig(staging_pages=2)
    request = rig.request()
    rig.worker.begin_step(rig.plan(residency=rig.grow(request, 33)))
    with pytest.raises(ValueError, match="33 needs 3 staging pages, staging_pages is 2"):
        rig.worker.kv(request.state_row, 0, 33, prefill=True)
    rig.worker.kv(request.state_row, 0, 32, prefill=True)
    rig.close()


def test_rows_without_a_place_are_refused(rig: Rig) -> None:
    request = settled(rig, "resident")
    rig.worker.begin_step(rig.plan(residency=rig.drop(request, 2)))
    with pytest.raises(UnreadableError, match="page 2 has no resident block to write to"):
        rig.worker.kv(request.state_row, 40, 10, prefill=True)
    with pytest.raises(UnreadableError, match="page 4 has no resident block to write to"):
        rig.worker.kv(request.state_row, 57, 8, prefill=True)
    with pytest.raises(UnreadableError, match="page 0 has no resident block"):
        rig.worker.kv(rig.request().state_row, 0, 1, prefill=True)


def test_a_history_with_a_hole_is_refused(rig: Rig) -> None:
    request = rig.request()
    deltas = rig.grow(request, 40)
    rig.worker.begin_step(rig.plan(residency=deltas[:1] + deltas[2:]))
    with pytest.raises(UnreadableError, match="page 1 is neither resident nor on the host"):
        rig.worker.kv(request.state_row, 39, 1, prefill=True)


def test_decoding_from_the_host_needs_a_hot_region(rig: Rig) -> None:
    request = settled(rig, "resident")
    rig.worker.begin_step(rig.plan(residency=rig.drop(request, 0)))
    with pytest.raises(UnreadableError, match="page 0 is on the host alone, and there is no hot region"):
        rig.worker.kv(request.state_row, request.tokens, 1, prefill=False)
    rig.worker.kv(request.state_row, request.tokens, 1, prefill=True)
