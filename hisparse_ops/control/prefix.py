"""Prefix identity: which host block holds the page with a given (chained) token hash.

Only the publisher adds; eviction and republication take away. `HostPool.hash_of` is the inverse.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import ControlError
from .types import HostBlock, TokenHash


class PrefixIndex:
    def __init__(self) -> None:
        self._block_of: dict[TokenHash, HostBlock] = {}

    def get(self, token_hash: TokenHash) -> HostBlock | None:
        return self._block_of.get(token_hash)

    def add(self, token_hash: TokenHash, block: HostBlock) -> None:
        if token_hash in self._block_of:
            raise ControlError(f"hash {token_hash} is published already")
        self._block_of[token_hash] = block

    def drop(self, token_hash: TokenHash) -> None:
        del self._block_of[token_hash]

    def items(self) -> Iterator[tuple[TokenHash, HostBlock]]:
        return iter(self._block_of.items())

    def __len__(self) -> int:
        return len(self._block_of)
