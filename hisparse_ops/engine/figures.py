"""What a run did, as figures: counted by scheduler, control and worker, read once at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """References are (query row, position) pairs that the top-k named while decoding, summed over index groups."""

    peak_requests: int  # most requests running in one step
    preemptions: int
    steps: int
    computed_tokens: int  # token positions computed, repeated ones included
    new_tokens: int
    seconds: float
    resident_references: int  # read from resident pages
    hot_hits: int  # read from the hot buffer
    misses: int  # loaded from the host first
    faults: int  # readable nowhere: must be 0
    host_bytes_read: int  # by misses, and by prefill of pages that are not resident
    mirrored_bytes: int
    spilled_pages: int  # made durable on the host
    reused_tokens: int  # found in the prefix cache at admission
    device_peak_bytes: int  # pool, staging area, tables, hot state; on a GPU also what is computed
    host_peak_bytes: int

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds
