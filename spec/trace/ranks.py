"""The lines of workers: what each began, computed and said, against what it was sent; and what control heard.

Only for the ranks that are recorded; of the others control's word is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .books import Books
from .holdings import require
from .plans import Plans, Step

FACTS = ("enqueued", "completed", "copied", "failed")


@dataclass(slots=True)
class Rank:
    epoch: int
    begun: int = -1
    ended: int = -1  # steps are begun and ended one after the other
    said: dict[str, set[int]] = field(default_factory=lambda: {fact: set() for fact in FACTS})
    mirrored: dict[int, list[int]] = field(default_factory=dict)  # of steps in flight


class Ranks:
    def __init__(self, books: Books, plans: Plans, ranks: dict[int, Rank]) -> None:
        self._books = books
        self._plans = plans
        self._ranks = ranks

    def line(self, line: Any) -> None:
        number, call = line["worker"], line["call"]
        if call == "made":
            self._ranks[number] = Rank(line["epoch"])
            return
        require(number in self._ranks, "W1", f"rank {number} was never made")
        if "raised" not in line:
            getattr(self, f"_{call}")(number, self._ranks[number], line.get("answer"), **line["args"])

    def _begin_step(self, number: int, rank: Rank, answer: None, plan: int) -> None:
        require(plan in self._plans.steps, "W1", f"rank {number} begins step {plan}, which is not in flight")
        require(rank.ended == rank.begun, "W1", f"rank {number} begins step {plan} in step {rank.begun}")
        skipped = [step for step in self._plans.steps if rank.begun < step < plan]
        require(rank.begun < plan and not skipped, "W1", f"rank {number} begins step {plan} after step {rank.begun}")
        rank.begun = plan

    def _kv(
        self, number: int, rank: Rank, answer: None, state_row: int, start: int, length: int, prefill: bool
    ) -> None:
        require(rank.begun != rank.ended, "W1", f"rank {number} computes outside a step")
        rows = f"rows {start} .. {start + length - 1} of state row {state_row}"
        scheduled = self._plans.steps[rank.begun].scheduled
        within = any(row == state_row and first <= start and start + length <= end for row, first, end in scheduled)
        require(within, "W1", f"rank {number} computes {rows}, which step {rank.begun} does not")

    def _end_step(self, number: int, rank: Rank, answer: None) -> None:
        require(rank.begun != rank.ended, "W1", f"rank {number} ends a step that it has not begun")
        rank.ended = rank.begun

    def _poll(self, number: int, rank: Rank, answer: Any) -> None:
        for report in answer or ():
            writer = (report["rank"], report["epoch"])
            require(writer == (number, rank.epoch), "W2", f"rank {number} of epoch {rank.epoch} speaks for {writer}")
            for fact in FACTS:
                for transfer_id in report[fact]:
                    self._check_fact(number, rank, fact, transfer_id)
                    rank.said[fact].add(transfer_id)
            for key, copied in report["mirrored"].items():
                self._check_mirror(number, rank, int(key), copied)
                rank.mirrored[int(key)] = copied

    def _check_fact(self, number: int, rank: Rank, fact: str, transfer_id: int) -> None:
        what = f"rank {number} says that {transfer_id} is {fact}"
        require(transfer_id not in rank.said[fact], "W2", f"{what} a second time")
        begun = {step for step in self._plans.steps if step <= rank.begun}
        ended = {step for step in begun if step <= rank.ended}
        if fact == "completed":
            require(transfer_id in rank.said["enqueued"], "W2", f"{what}, and it was not enqueued")
        in_ended = {step: {*sent.spills, *sent.restores, *sent.copies} for step, sent in self._sent(ended)}
        in_begun = {step: {*sent.restores, *sent.copies} for step, sent in self._sent(begun)}
        places = [*in_ended.values(), *(in_begun.values() if fact in ("enqueued", "failed") else ())]
        require(any(transfer_id in place for place in places), "W2", f"{what}, and no step that it ran says so")

    def _sent(self, steps: set[int]) -> list[tuple[int, Step]]:
        return [(step, self._plans.steps[step]) for step in sorted(steps)]

    def _check_mirror(self, number: int, rank: Rank, sequence: int, copied: list[int]) -> None:
        what = f"rank {number} says that it mirrored {copied} rows in step {sequence}"
        step = self._plans.steps.get(sequence)
        require(step is not None and sequence <= rank.ended, "W2", f"{what}, which it has not ended")
        assert step is not None
        fits = len(copied) == len(step.rows) and all(a <= b for a, b in zip(copied, step.rows, strict=False))
        require(fits, "S15", f"{what}, and {step.rows} were written")

    # What control hears, and what need not be remembered any more.

    def heard(self, report: Any) -> None:
        rank = self._ranks.get(report["rank"])
        if rank is None or rank.epoch != report["epoch"]:
            return
        what = f"control hears of rank {report['rank']} that"
        for fact in FACTS:
            for transfer_id in report[fact]:
                known = transfer_id in rank.said[fact] or transfer_id not in self._books.transfers
                require(known, "W3", f"{what} {transfer_id} is {fact}")
        for key, copied in report["mirrored"].items():
            sequence, writer = int(key), (report["rank"], report["epoch"])
            known = rank.mirrored.get(sequence) == copied or not self._plans.awaits_mirror(sequence, writer)
            require(known, "W3", f"{what} {copied} rows of step {sequence} were mirrored")

    def step_done(self, sequence: int) -> None:
        if self._plans.steps.pop(sequence, None) is None:
            return
        for number, rank in self._ranks.items():
            require(rank.ended >= sequence, "W1", f"step {sequence} is done, and rank {number} has not ended it")
            rank.mirrored = {
                step: counts
                for step, counts in rank.mirrored.items()
                if self._plans.awaits_mirror(step, (number, rank.epoch))
            }

    def retired(self, transfer_id: int) -> None:
        for rank in self._ranks.values():
            for said in rank.said.values():
                said.discard(transfer_id)
