"""S19: what a step in flight may touch rests until the step is done."""

from __future__ import annotations

import pytest

from hisparse_ops.control.errors import CountError
from hisparse_ops.control.fence import Fence
from hisparse_ops.control.gpu_pool import GpuPool
from hisparse_ops.control.host_pool import HostPool


@pytest.fixture
def gpu() -> GpuPool:
    return GpuPool(5)


@pytest.fixture
def host() -> HostPool:
    return HostPool(5, lambda block, token_hash: None)


@pytest.fixture
def fence(gpu: GpuPool, host: HostPool) -> Fence:
    return Fence(gpu, host, last_planned=-1)


def test_without_a_step_in_flight_nothing_rests(fence: Fence, gpu: GpuPool, host: HostPool) -> None:
    fence.release_gpu(gpu.lease(2))
    fence.release_host(host.lease())
    assert gpu.free == 4 and host.free == 4


def test_a_release_waits_for_every_step_planned_so_far(fence: Fence, gpu: GpuPool, host: HostPool) -> None:
    lease, block = gpu.lease(2), host.lease()
    fence.planned(0)
    fence.planned(1)
    fence.release_gpu(lease)
    fence.release_host(block)
    fence.planned(2)
    for sequence, free in ((0, 2), (1, 4), (2, 4)):
        assert (fence.resting_gpu, fence.resting_host) == ((2, 1) if sequence < 2 else (0, 0))
        fence.done(sequence)
        assert gpu.free == free
    assert host.free == 4


def test_steps_done_out_of_order_release_nothing_early(fence: Fence, gpu: GpuPool) -> None:
    lease = gpu.lease(2)
    fence.planned(0)
    fence.planned(1)
    fence.release_gpu(lease)
    fence.done(1)
    assert gpu.free == 2
    fence.done(0)
    assert gpu.free == 4


def test_what_rests_and_is_shared_and_given_up_again_waits_for_the_later_step(
    fence: Fence, gpu: GpuPool, host: HostPool
) -> None:
    lease, block = gpu.lease(2), host.lease()
    fence.planned(0)
    fence.release_gpu(lease)
    fence.release_host(block)
    gpu.share(lease)
    host.share(block)
    fence.planned(1)
    fence.release_gpu(lease)
    fence.release_host(block)
    fence.done(0)
    assert gpu.free == 2 and host.free == 3, "step 1 may still read them"
    fence.done(1)
    assert gpu.free == 4 and host.free == 4


def test_only_the_last_reference_rests(fence: Fence, gpu: GpuPool) -> None:
    lease = gpu.lease(2)
    gpu.share(lease)
    fence.planned(0)
    fence.release_gpu(lease)
    assert lease.refs == 1 and fence.resting_gpu == 0
    fence.release_gpu(lease)
    assert lease.refs == 1 and fence.resting_gpu == 2
    with pytest.raises(CountError, match="only the fence holds"):
        fence.release_gpu(lease)


def test_a_step_is_done_once_and_must_have_been_planned(fence: Fence) -> None:
    fence.planned(0)
    fence.done(0)
    fence.done(0)
    with pytest.raises(ValueError, match="sequence: expected a planned step"):
        fence.done(1)
