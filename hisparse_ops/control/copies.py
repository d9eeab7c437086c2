"""Which published host block has a readable copy on the GPU.

Used twice: for the KV rows of a page (a later request adopts them without a transfer) and for its
index keys, which live on the GPU only, so that a prefix hit reaches no further than they do.
An entry watches its lease: when the pool hands the blocks out again, the whole entry is forgotten
in the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from .gpu_pool import GpuPool, Lease
from .types import HostBlock


class CopyIndex:
    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._lease_of: dict[HostBlock, Lease] = {}
        self._block_of: dict[Lease, HostBlock] = {}

    def get(self, block: HostBlock) -> Lease | None:
        return self._lease_of.get(block)

    def add(self, block: HostBlock, lease: Lease) -> None:
        """Index `lease` as the copy of `block`, unless the block has one, or the lease serves already."""
        if block not in self._lease_of and lease not in self._block_of:
            self._pool.watch(lease, self)
            self._lease_of[block] = lease
            self._block_of[lease] = block

    def drop(self, block: HostBlock) -> None:
        """Forget the copy of `block`, if there is one."""
        lease = self._lease_of.pop(block, None)
        if lease is not None:
            del self._block_of[lease]
            self._pool.unwatch(lease, self)

    def lost(self, lease: Lease) -> None:
        """The pool reused the lease."""
        del self._lease_of[self._block_of.pop(lease)]

    def items(self) -> Iterator[tuple[HostBlock, Lease]]:
        return iter(self._lease_of.items())

    def inverse(self) -> Iterator[tuple[Lease, HostBlock]]:
        return iter(self._block_of.items())
