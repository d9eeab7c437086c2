"""The pools: addresses against plain arithmetic, life and death of the memory, pinning with a fake driver."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_ops.memory import host_budget, host_pool, mapping
from hisparse_ops.memory.host_budget import HostMemoryError
from hisparse_ops.memory.host_pool import HostPool, HostPoolClosedError, Shared
from hisparse_ops.memory.kv_pool import KVPool
from hisparse_ops.memory.layout import Layout, LayoutError, ModelSpec, plan_layout
from hisparse_ops.memory.mapping import MappingError
from hisparse_ops.memory.pinning import PinnedMemory, PinningError
from hisparse_ops.memory.ranges import Range

WIDTH = 6  # fp32 elements of a row
DTYPES = [torch.float32, torch.bfloat16]


def layout_of(block_size: int = 16, leaders: tuple[int, ...] = (0, 1, 2, 5), host_blocks: int = 7) -> Layout:
    """7 layers in units of 1, 1, 3, 2: more than one unit in a group, and groups that are not full."""
    spec = ModelSpec(7, leaders, row_bytes=4 * WIDTH, index_row_bytes=20, block_size=block_size, top_k=8)
    roomy = plan_layout(spec, 2**20, 0)
    return plan_layout(spec, 11 * roomy.block_bytes, host_blocks * roomy.host_block_bytes)


def test_a_device_pool_that_does_not_fit_is_refused_by_name() -> None:
    beyond_any_machine = 2**60
    spec = ModelSpec(1, (0,), row_bytes=2**30, index_row_bytes=4)
    with pytest.raises(MemoryError, match=f"device_bytes={beyond_any_machine} on cpu"):
        KVPool(plan_layout(spec, beyond_any_machine, 0), torch.float32)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_allocation_takes_exactly_what_the_layout_says(data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(1, 9))
    others = data.draw(st.sets(st.integers(1, 8), max_size=4))
    spec = ModelSpec(
        num_layers,
        (0, *sorted(layer for layer in others if layer < num_layers)),
        row_bytes=4 * data.draw(st.integers(1, 40)),
        index_row_bytes=4 * data.draw(st.integers(1, 40)),
        block_size=data.draw(st.sampled_from([1, 3, 16])),
        top_k=4,
    )
    budget = data.draw(st.integers(2**17, 2**19))
    layout = plan_layout(spec, budget, budget)
    with HostPool(layout, torch.float32, pin=False) as host:
        assert host.bytes == layout.host_bytes <= budget
        assert sum(host.unit_tensor(unit).nbytes for unit in range(len(layout.units))) == host.bytes
    assert KVPool(layout, torch.float32).bytes == layout.device_bytes <= budget


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_device_row_is_where_the_contract_says(dtype: torch.dtype, block_size: int) -> None:
    layout = layout_of(block_size)
    pool = KVPool(layout, dtype)
    as_bytes = pool.storage.view(torch.uint8)
    as_bytes.zero_()
    for layer in range(layout.spec.num_layers):
        rows = pool.layer_rows(layer)
        block, offset = 3 + layer, block_size - 1
        rows[block * layout.block_stride + offset] = layer + 1
        first = block * layout.block_bytes + layout.slot_of(layer) * layout.page_bytes + offset * layout.spec.row_bytes
        written = as_bytes.nonzero().flatten()
        assert first <= written.min() and written.max() < first + layout.spec.row_bytes
        rows[block * layout.block_stride + offset] = 0


def test_the_views_of_all_layers_end_with_the_last_block() -> None:
    layout = layout_of()
    pool = KVPool(layout, torch.float32)
    last = (layout.num_blocks - 1) * layout.block_stride + layout.block_size - 1
    assert {len(pool.layer_rows(layer)) for layer in range(7)} == {last + 1}


@pytest.mark.parametrize("block_size", [1, 16])
def test_all_views_of_a_block_are_disjoint_and_inside_it(block_size: int) -> None:
    layout = layout_of(block_size)
    pool = KVPool(layout, torch.float32)
    for views, count in (
        ([pool.layer_rows(layer) for layer in layout.groups[0].layers], WIDTH * block_size),
        ([pool.index_rows(layout.units[unit].leader) for unit in layout.indexer_groups[0]], 5 * block_size),
    ):
        pool.storage.zero_()
        for number, view in enumerate(views):
            if view.dim() == 2:
                view[2 * layout.block_stride : 2 * layout.block_stride + block_size] = number + 1
            else:
                view[2] = number + 1
        block = pool.storage.view(layout.num_blocks, -1)[2]
        assert pool.storage.count_nonzero() == block.count_nonzero()
        assert [int((block == number + 1).sum()) for number in range(len(views))] == [count] * len(views)


def test_the_null_block_holds_no_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *shape, **kwargs: torch.full(shape, float("nan"), **kwargs))
    layout = layout_of()
    pool = KVPool(layout, torch.float32)
    assert pool.storage.isnan().any()
    assert not pool.layer_rows(0)[0].isnan().any()
    assert not pool.index_rows(0)[0].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_host_row_is_token_major(dtype: torch.dtype, block_size: int) -> None:
    layout = layout_of(block_size)
    with HostPool(layout, dtype, pin=False) as pool:
        for unit, (_, layers) in enumerate((u.leader, u.layers) for u in layout.units):
            for column, layer in enumerate(layers):
                pool.layer_rows(layer)[5 * block_size] = layer + 1
                token = pool.unit_tensor(unit)[5 * block_size].view(len(layers), pool.width)
                assert (token[column] == layer + 1).all()
                assert torch.equal(pool.unit_rows(unit)[column], pool.layer_rows(layer))
            assert pool.unit_tensor(unit).count_nonzero() == len(layers) * pool.width


def test_the_host_pool_starts_on_a_page_with_zeros() -> None:
    with HostPool(layout_of(), torch.float32, pin=False) as pool:
        assert pool.unit_tensor(0).data_ptr() % 4096 == 0
        assert not any(pool.unit_tensor(unit).any() for unit in range(4))


def test_every_host_tensor_begins_its_storage() -> None:
    """torch.compile misreads column views of a tensor that begins inside one."""
    with HostPool(layout_of(), torch.float32, pin=False) as pool:
        tensors = [pool.unit_tensor(unit) for unit in range(len(pool.layout.units))]
        assert len(tensors) > 1 and all(tensor.storage_offset() == 0 for tensor in tensors)


@pytest.mark.parametrize("pool_type", [KVPool, HostPool])
def test_rows_must_be_whole_elements(pool_type: type[KVPool] | type[HostPool]) -> None:
    spec = ModelSpec(1, (0,), row_bytes=12, index_row_bytes=12, block_size=4, top_k=1)
    with pytest.raises(LayoutError, match="row_bytes=12"):
        pool_type(plan_layout(spec, 2**12, 2**12), torch.float64)


def test_a_gpu_that_is_full_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(MemoryError, match=r"the device pool does not fit: device_bytes=\d+ on cuda"):
        KVPool(layout_of(), torch.float32, "cuda")


def test_an_error_that_is_not_about_memory_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("the storage is closed")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(RuntimeError, match="the storage is closed"):
        KVPool(layout_of(), torch.float32)


def test_index_rows_must_be_whole_elements() -> None:
    spec = ModelSpec(1, (0,), row_bytes=12, index_row_bytes=6, block_size=4, top_k=1)
    with pytest.raises(LayoutError, match="index_row_bytes=6"):
        KVPool(plan_layout(spec, 2**12, 0), torch.float32)


def test_a_layout_without_a_host_tier_has_no_host_pool() -> None:
    with pytest.raises(LayoutError, match="host_bytes=0"):
        HostPool(layout_of(host_blocks=0), torch.float32)


def test_the_budget_is_asked_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_budget, "available_bytes", lambda: 1000)
    monkeypatch.setattr(host_pool, "private_mapping", lambda size: pytest.fail("memory was taken"))
    with pytest.raises(HostMemoryError):
        HostPool(layout_of(), torch.float32, pin=False)


# The end of a pool.


def test_closing_twice_is_closing_once_and_use_after_it_raises() -> None:
    pool = HostPool(layout_of(), torch.float32, pin=False)
    pool.close()
    pool.close()
    for use in (lambda: pool.layer_rows(0), lambda: pool.unit_rows(0), lambda: pool.unit_tensor(0), pool.device_view):
        with pytest.raises(HostPoolClosedError):
            use()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("keep_a_view", [False, True])
def test_close_gives_the_bytes_back_at_once(keep_a_view: bool) -> None:
    """Also while somebody still holds a view: that reads zeros then, and never freed memory."""
    pool = HostPool(layout_of(block_size=64, host_blocks=6000), torch.float32, pin=False)
    for unit in range(4):
        pool.unit_tensor(unit).fill_(1)
    view = pool.layer_rows(0) if keep_a_view else None
    before = resident_bytes()
    pool.close()
    assert before - resident_bytes() > 0.9 * pool.bytes
    assert view is None or not view.any()


# Pinning, with a driver that is a dictionary.


class FakeDriver:
    """Maps each registration at a distance of its own; can fail at the n-th call."""

    def __init__(self, fail_at: int | None = None, distance: int = 2**40) -> None:
        self.live: dict[int, int] = {}
        self.calls = 0
        self.fail_at = fail_at
        self.distance = distance

    def register(self, address: int, size: int) -> int:
        self.calls += 1
        if self.calls == self.fail_at:
            raise PinningError(f"cudaHostRegister of {size} bytes failed with code 2: out of memory")
        assert address not in self.live, "registered twice"
        self.live[address] = size
        return address + self.calls * self.distance

    def unregister(self, address: int) -> None:
        del self.live[address]


@pytest.fixture
def small_registrations(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host_pool, "REGISTRATION_LIMIT", 4 * 4096)
    return 4 * 4096


def pinned_pool(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> HostPool:
    monkeypatch.setattr(host_pool, "CudaRegistrar", lambda: driver)
    spec = ModelSpec(3, (0, 1), row_bytes=64, index_row_bytes=4, block_size=64, top_k=1)
    return HostPool(plan_layout(spec, 2**20, 10 * 3 * 4096), torch.float32, pin=True)


def test_a_pool_is_registered_exactly_and_released_once(
    monkeypatch: pytest.MonkeyPatch, small_registrations: int
) -> None:
    driver = FakeDriver()
    pool = pinned_pool(monkeypatch, driver)
    start = pool.unit_tensor(0).data_ptr()
    assert sum(driver.live.values()) == pool.bytes
    assert max(driver.live.values()) <= small_registrations
    assert min(driver.live) == start and pool.pinned
    pool.close()
    pool.close()
    assert not driver.live and not pool.pinned


def test_a_refused_registration_undoes_those_before_it(
    monkeypatch: pytest.MonkeyPatch, small_registrations: int
) -> None:
    driver = FakeDriver(fail_at=3)
    with pytest.raises(PinningError, match="of 16384 bytes failed with code 2"):
        pinned_pool(monkeypatch, driver)
    assert driver.calls == 3 and not driver.live


def test_an_address_comes_from_its_own_registration() -> None:
    driver = FakeDriver()
    memory = PinnedMemory(driver, 10_000, [Range(0, 100), Range(100, 300)])
    assert memory.device_address(10_050, 50) == 10_050 + driver.distance
    assert memory.device_address(10_100, 200) == 10_100 + 2 * driver.distance
    with pytest.raises(PinningError, match="cross"):
        memory.device_address(10_050, 100)
    with pytest.raises(PinningError, match="not all registered"):
        memory.device_address(10_250, 100)


def test_registrations_at_one_distance_are_one_piece() -> None:
    memory = PinnedMemory(FakeDriver(distance=0), 10_000, [Range(0, 100), Range(100, 300)])
    assert memory.device_address(10_050, 100) == 10_050


def test_only_a_pinned_pool_has_a_device_view() -> None:
    with HostPool(layout_of(), torch.float32, pin=False) as pool, pytest.raises(PinningError, match="pin"):
        pool.device_view()


# One mapping for several ranks.


def test_ranks_see_the_same_bytes_and_only_the_creator_writes(tmp_path: Path) -> None:
    layout, path = layout_of(), tmp_path / "pool"
    with HostPool(layout, torch.float32, pin=False, shared=Shared(path, creator=True)) as creator:
        with HostPool(layout, torch.float32, pin=False, shared=Shared(path, creator=False)) as joiner:
            creator.layer_rows(3)[17] = 5
            assert (joiner.layer_rows(3)[17] == 5).all()
            assert creator.writer and not joiner.writer
        assert path.exists()
    assert not path.exists()


def test_a_joiner_waits_for_the_creator(tmp_path: Path) -> None:
    layout, path = layout_of(), tmp_path / "pool"
    joined: list[int] = []

    def join() -> None:
        with HostPool(layout, torch.float32, pin=False, shared=Shared(path, creator=False)) as pool:
            joined.append(pool.bytes)

    thread = threading.Thread(target=join)
    thread.start()
    with HostPool(layout, torch.float32, pin=False, shared=Shared(path, creator=True)):
        thread.join(timeout=10)
        assert joined == [layout.host_bytes]


def test_a_region_larger_than_its_file_system_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match=f"does not fit into {tmp_path}"):
        mapping.create_shared(tmp_path / "pool", 2**60)
    assert list(tmp_path.iterdir()) == []


def test_a_creator_that_fails_half_way_leaves_nothing_and_joiners_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapping.os, "posix_fallocate", full)
    with pytest.raises(MappingError, match="No space left"):
        mapping.create_shared(tmp_path / "pool", 4096)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(MappingError, match=r"not made within 0\.1 s"):
        mapping.join_shared(tmp_path / "pool", 4096, timeout_seconds=0.1)


def test_a_creator_whose_pinning_fails_takes_the_region_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "CudaRegistrar", lambda: FakeDriver(fail_at=1))
    with pytest.raises(PinningError):
        HostPool(layout_of(), torch.float32, pin=True, shared=Shared(tmp_path / "pool", creator=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left_behind", ["pool", "pool.building"])
def test_a_region_left_behind_is_not_taken_over(tmp_path: Path, left_behind: str) -> None:
    (tmp_path / left_behind).write_bytes(b"someone's")
    with pytest.raises(MappingError, match="remove it"):
        mapping.create_shared(tmp_path / "pool", 4096)
    assert (tmp_path / left_behind).read_bytes() == b"someone's"


def test_ranks_of_different_layouts_do_not_share(tmp_path: Path) -> None:
    region = mapping.create_shared(tmp_path / "pool", 8192)
    with pytest.raises(MappingError, match="has 8192 bytes, 4096 expected"):
        mapping.join_shared(tmp_path / "pool", 4096, timeout_seconds=1)
    region.close()
