"""Where pages lie and what hot slots hold, as plans come and state rows change hands."""

from __future__ import annotations

import pytest
import torch
from worker.harness import INDEX_LAYER, LAYERS, Request, Rig

from hisparse_ops.control.types import HotDelta
from hisparse_ops.worker import UnreadableError


def test_a_cleared_state_row_has_nothing_of_its_last_owner(rig: Rig) -> None:
    request, other = rig.cached_in_hot_slots(), rig.cached_in_hot_slots()
    rig.idle(cleared_rows=(request.state_row,))
    tables = rig.worker.tables
    for table in (tables.host[None], tables.resident, tables.hot, tables.indexer):
        assert not table[:, request.state_row].any()
        assert table[:, other.state_row].any()
    for state in rig.worker.hot_states:
        assert (state.slot_rows[request.state_row] == -1).all() and (state.slot_rows[other.state_row] >= 0).any()
        assert state.clock[request.state_row] == 0 and state.clock[other.state_row] == 1
    assert tables.rows_with_hot_region == {other.state_row}
    rig.worker.begin_step(rig.plan(residency=(rig.delta(request, 2),)))
    with pytest.raises(UnreadableError, match="page 1 has no resident block"):
        rig.worker.kv(request.state_row, 31, 2, prefill=True)
    with pytest.raises(UnreadableError, match="page 0 is neither resident nor on the host"):
        rig.worker.kv(request.state_row, 32, 2, prefill=True)


def test_a_cleared_row_may_get_its_new_owner_in_the_same_step(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    heir = Request(77, request.state_row)
    rig.compute(heir, 0, 20, cleared_rows=(request.state_row,))
    rig.worker.begin_step(rig.plan(residency=rig.grow(heir, 21)))
    kv = rig.worker.kv(heir.state_row, 20, 1, prefill=True)
    rig.fill(kv, heir)
    rig.check_context(kv, heir)
    assert not rig.worker.tables.host[heir.state_row, 2:].any()


def test_a_hot_region_starts_and_ends_empty(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    for _ in range(2):
        rig.idle(hot=rig.grant_hot(request), residency=rig.drop(request, 0))
        for number, group in enumerate(request.hot):
            assert rig.worker.tables.hot[number, request.state_row].tolist() == list(group)
        assert all((state.slot_rows[request.state_row] == -1).all() for state in rig.worker.hot_states)
        rig.read_first_rows(request)
        assert all((state.slot_rows[request.state_row] >= 0).any() for state in rig.worker.hot_states)
    delta, transfer = rig.restore(request, 0)
    rig.idle(hot=(HotDelta(request.state_row, ()),), residency=(delta,), transfers=(transfer,))
    assert not rig.worker.tables.hot[:, request.state_row].any()
    assert all((state.slot_rows[request.state_row] == -1).all() for state in rig.worker.hot_states)


def test_a_recycled_host_block_is_not_read_from_a_slot_that_cached_its_old_bytes(rig: Rig) -> None:
    request = rig.cached_in_hot_slots()
    recycled = request.pages[0].host
    donor = rig.request()
    rig.compute(donor, 0, 16)
    for layer in range(LAYERS):  # another tenant's bytes, as if it had been mirrored there
        rig.host_page(request.pages[0], layer)[:] = rig.expected(donor, layer, range(16))
        rig.truth.update({(request.number, p, layer): rig.truth[donor.number, p, layer] for p in range(3)})
    rig.idle(recycled=(recycled,))
    rig.read_first_rows(request)


def test_of_two_words_about_a_page_the_last_counts(rig: Rig) -> None:
    request = rig.request()
    (delta,) = rig.grow(request, 16)
    other = delta._replace(gpu_blocks=rig.gpu_blocks(rig.layout.num_groups))
    rig.idle(residency=(other, delta))
    assert rig.worker.tables.resident[:, request.state_row, 0].tolist() == list(delta.gpu_blocks)
    regions = [rig.grant_hot(request)[0] for _ in range(2)]
    rig.idle(hot=tuple(regions))
    assert rig.worker.tables.hot[0, request.state_row].tolist() == list(regions[1].blocks[0])


def test_index_keys_are_never_mirrored_and_survive_the_loss_of_a_page(rig: Rig) -> None:
    request = rig.request()
    rig.compute(request, 0, 40)
    rig.idle(residency=rig.drop(request, 0), hot=rig.grant_hot(request))
    rig.worker.begin_step(rig.plan())
    kv = rig.worker.kv(request.state_row, 39, 1, prefill=False)
    want = rig.expected(request, INDEX_LAYER, range(40))
    assert torch.equal(kv.index_rows(0), want)
