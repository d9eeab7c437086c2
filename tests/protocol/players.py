"""Requests and imports as the engine knows them."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_ops.control.request import Request
from hisparse_ops.control.types import ImportStarted


@dataclass
class Player:
    """A request as the engine knows it. Its slot decides its tokens."""

    id: str
    slot: int
    row: int
    record: Request  # control's, to recognise it after the id is free again
    prompt: int
    computed: int
    draft: int = 0
    told: int = 0  # page hashes that control has
    planned: int = -1  # the last step that computes for it
    imported: bool = False  # the transport has ended; whether it worked out is known when the tail's copy is


@dataclass
class Arrival:
    """An import under way: what the transport may write, and how much of it there is."""

    player: Player
    tokens: int
    started: ImportStarted
    written: int = 0
