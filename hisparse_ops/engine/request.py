"""A request: its tokens, how many of their KV rows exist, and which rows come next.

Rows are always computed in the same pieces: the prompt in chunks `[i*C, min((i+1)*C, prompt))`, every
generated token alone. A matrix product's last bits depend on how many rows share it, so a row's bits are
then a function of the request's own tokens, whoever else runs and however often it was preempted.

    phase      state row   rows computed     leaves by
    WAITING    none        0                 admission
    RUNNING    held        0 .. tokens - 1   the last token (FINISHED), preemption (WAITING), abort (ABORTED)
    FINISHED   none        kept as a record  -
    ABORTED    none        kept as a record  -
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from torch import Tensor

_HASH_BYTES = 16
_TOKEN_BYTES = 8


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True)
class Request:
    """`prompt` tokens, at most `max_new_tokens` more; decoding also ends at a token of `stop_tokens`."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    phase: Phase = Phase.WAITING
    output: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # of each output token, [vocab] float32
    computed: int = 0  # positions whose KV rows exist
    preemptions: int = 0
    page_hashes: list[int] = field(default_factory=list)  # of the full pages of the tokens known so far

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"prompt of request {self.id!r} is empty: expected at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens of request {self.id!r} is {self.max_new_tokens}: expected at least 1")

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def max_tokens(self) -> int:
        """The most KV rows it can ever have: the last output token is never computed."""
        return len(self.prompt) + self.max_new_tokens - 1

    @property
    def done(self) -> bool:
        return len(self.output) == self.max_new_tokens or (bool(self.output) and self.output[-1] in self.stop_tokens)

    def tokens(self, start: int, end: int) -> list[int]:
        """Token ids of positions `start .. end-1`."""
        prompt = len(self.prompt)
        return [*self.prompt[start:end], *self.output[max(start - prompt, 0) : max(end - prompt, 0)]]

    def next_end(self, chunk: int) -> int:
        """End of the piece that starts at `computed`."""
        return self._piece_end(self.computed, chunk)

    def resume_point(self, cached: int, chunk: int, block_size: int) -> int:
        """The last position, at most `cached` and short of the last token, where a piece and a page both begin."""
        point = min(cached, self.num_tokens - 1)
        point -= point % block_size
        return point if point >= len(self.prompt) else point - point % chunk

    def hash_full_pages(self, chunk: int, block_size: int) -> list[int]:
        """Extend `page_hashes` to every full page of the known tokens, and return them.

        A chain, so that equal hashes mean equal tokens from the start. A row's last bits may depend on all the
        tokens of its piece (tokens that meet in one expert share a matrix product), so a page is hashed with
        every token up to the end of its last piece, and behind the prompt's last whole chunk also with where the
        prompt ended. Pages are then shared only by requests that would compute the same bits.
        """
        whole_chunks = len(self.prompt) - len(self.prompt) % chunk
        for page in range(len(self.page_hashes), self.num_tokens // block_size):
            start, end = page * block_size, (page + 1) * block_size
            digest = blake2b(digest_size=_HASH_BYTES)
            if page:
                digest.update(self.page_hashes[-1].to_bytes(_HASH_BYTES, "little"))
            if end > whole_chunks:
                digest.update(len(self.prompt).to_bytes(_TOKEN_BYTES, "little"))
            for token in self.tokens(start, self._piece_end(end - 1, chunk)):
                digest.update(token.to_bytes(_TOKEN_BYTES, "little"))
            self.page_hashes.append(int.from_bytes(digest.digest(), "little"))
        return self.page_hashes

    def _piece_end(self, position: int, chunk: int) -> int:
        """End of the piece in which `position` is computed."""
        if position < len(self.prompt):
            return min((position // chunk + 1) * chunk, len(self.prompt))
        return position + 1
