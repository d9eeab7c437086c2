"""The pool of host blocks. A host block holds one page of every layer and outlives its requests.

| block       | refs | hash | where                                                       |
|-------------|------|------|-------------------------------------------------------------|
| blank       | 0    | no   | `_blank`                                                    |
| cached      | 0    | yes  | `_cached`, least recently given up first: still a prefix hit |
| owned       | >= 1 | no   | with its holders                                            |
| published   | >= 1 | yes  | with its holders, and may gain more                         |

Every block that is leased, on whatever path, is noted in `recycled`: rows of its former content
may still sit in hot buffers and must be invalidated before the next resolve.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

from .errors import ControlError, CountError
from .types import NO_HOST_BLOCK, HostBlock, TokenHash


class HostPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block."""

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[HostBlock, TokenHash], None],
        order: Iterable[int] | None = None,
    ) -> None:
        """`on_evict` is told which hash a cached block loses. `order` gives the ids in the order of
        the free queue (default 1 .. num_blocks - 1)."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks: expected at least the null block, got {num_blocks}")
        ids = range(1, num_blocks) if order is None else order
        self._blank: deque[HostBlock] = deque(map(HostBlock, ids))
        self.usable = len(self._blank)
        self.refs: dict[HostBlock, int] = dict.fromkeys(self._blank, 0)
        if NO_HOST_BLOCK in self.refs or len(self.refs) != self.usable or self.usable != num_blocks - 1:
            raise ValueError(f"order: expected {num_blocks - 1} distinct blocks without the null block")
        self._cached: OrderedDict[HostBlock, None] = OrderedDict()
        self.hash_of: dict[HostBlock, TokenHash] = {}
        self._on_evict = on_evict
        self._recycled: dict[HostBlock, None] = {}

    @property
    def free(self) -> int:
        """Blocks that a lease can have: blank, or cached and evictable."""
        return len(self._blank) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def lease(self) -> HostBlock:
        """Take one block: a blank one, or the one cached longest, which then loses its hash."""
        if not self._blank:
            self._evict_oldest()
        block = self._blank.popleft()
        self.refs[block] = 1
        self._recycled[block] = None
        return block

    def share(self, block: HostBlock) -> None:
        """One more holder, of an owned or a cached block."""
        if self.refs[block] == 0:
            if block not in self._cached:
                raise ControlError(f"host block {block} is blank: it holds nothing to share")
            del self._cached[block]
        self.refs[block] += 1

    def release(self, block: HostBlock) -> None:
        """One holder less. The last one leaves a hashed block cached, any other blank."""
        if self.refs[block] == 0:
            raise CountError(f"release of host block {block}, which nobody holds")
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self.hash_of:
                self._cached[block] = None
            else:
                self._blank.append(block)

    def set_hash(self, block: HostBlock, token_hash: TokenHash) -> None:
        """The block's content is published under `token_hash`."""
        if self.refs[block] == 0 or block in self.hash_of:
            raise ControlError(f"host block {block} is not an owned block without a hash")
        self.hash_of[block] = token_hash

    def drop_hash(self, block: HostBlock) -> TokenHash:
        """The block is no hit any more; a cached one becomes blank."""
        token_hash = self.hash_of.pop(block)
        if block in self._cached:
            del self._cached[block]
            self._blank.append(block)
        return token_hash

    def take_recycled(self) -> tuple[HostBlock, ...]:
        """The blocks leased since the last call."""
        recycled = tuple(self._recycled)
        self._recycled.clear()
        return recycled

    def blank_blocks(self) -> Iterator[HostBlock]:
        return iter(self._blank)

    def cached_blocks(self) -> Iterator[HostBlock]:
        return iter(self._cached)

    def _evict_oldest(self) -> None:
        if not self._cached:
            raise ControlError("a host block asked and none free: the caller did not check")
        block = next(iter(self._cached))
        self._on_evict(block, self.drop_hash(block))
