"""`python -m contracts.mistakes` (from tests/): the real code with one mistake; its contract must break.

A contract that no mistake breaks says nothing, so there is at least one for each.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from contracts.__main__ import PATHS, TOPICS
from contracts.checker import BROKEN, check, contracts_of
from contracts.without_torch import bare_package

PURE = ("control", "memory")


class Mistake(NamedTuple):
    contract: str  # topic.function
    file: str
    right: str
    wrong: str


MISTAKES = (
    Mistake(
        "rows.every_token_has_a_page_and_no_page_is_empty", "control/admission.py",
        "-(-tokens // self._shape.block_size)", "tokens // self._shape.block_size + 1",
    ),
    Mistake(
        "rows.a_step_writes_the_pages_that_hold_its_rows", "control/planner.py",
        "(end - 1) // size", "end // size",
    ),
    Mistake(
        "rows.a_page_is_proven_once_no_step_that_may_have_written_it_is_open", "control/mirror.py",
        "page.last_write + 1)", "page.last_write)",
    ),
    Mistake(
        "capacity.nobody_is_charged_more_than_full_residency", "control/admission.py",
        "Charge(min(full, reduced)", "Charge(reduced",
    ),
    Mistake(
        "capacity.more_tokens_never_cost_less", "control/admission.py",
        "Charge(min(full, reduced)", "Charge(reduced if pages % 2 else full",
    ),
    Mistake(
        "capacity.planner_and_ledger_ask_for_the_same", "control/admission.py",
        "+ 1 + WRITABLE_PAGES", "+ WRITABLE_PAGES",
    ),
    Mistake(
        "capacity.admissions_never_promise_more_than_there_is", "control/admission.py",
        "movable = self.movable + charge.movable", "movable = self.movable",
    ),
    Mistake(
        "capacity.what_comes_back_does_not_cause_pressure", "control/policy.py",
        "self.mark + max(hot_cost, self.mark // 2)", "self.mark + self.mark // 2",
    ),
    Mistake(
        "ranges.a_seam_is_a_page_boundary_between_blocks", "memory/ranges.py",
        "(last - (last - first) % period)", "last",
    ),
    Mistake(
        "ranges.no_later_seam_is_missed", "memory/ranges.py",
        "min(extent.num_blocks, (high", "min(extent.num_blocks - 1, (high",
    ),
    Mistake(
        "ranges.ranges_cover_the_pool_and_cut_no_block", "memory/ranges.py",
        "in_gap if in_gap >= extent.end else", "in_gap if in_gap >= extent.start else",
    ),
    Mistake(
        "ranges.whatever_the_sizes_ranges_cut_no_block", "memory/ranges.py",
        "low + limit, page)\n        if seam", "low + limit + page, page)\n        if seam",
    ),
    Mistake(
        "ranges.a_pool_within_the_limit_is_one_range", "memory/ranges.py",
        "while total - low > limit", "while total - low >= limit",
    ),
    Mistake(
        "frontier.pages_are_published_in_order_without_a_gap", "control/publication.py",
        "            if not page.durable:\n                break\n", "",
    ),
    Mistake(
        "frontier.nothing_is_published_twice", "control/publication.py",
        "request.hashes[request.frontier])\n            request.frontier += 1",
        "request.hashes[request.frontier])\n            request.frontier += 1\n            self._publish(page, 0)",
    ),
    Mistake(
        "order.the_first_of_those_that_free_most_is_moved", "control/policy.py",
        "max(candidates, key=lambda c: c.frees", "max(candidates, key=lambda c: (c.frees, c.request)",
    ),
    Mistake(
        "order.the_first_of_the_cheapest_comes_back", "control/policy.py",
        "min(candidates, key=lambda c: c.costs", "max(candidates, key=lambda c: c.costs",
    ),
    Mistake(
        "order.clean_pages_are_given_up_tail_first_and_never_the_last_two", "control/request.py",
        "sorted(clean, reverse=True)", "sorted(clean)",
    ),
    Mistake(
        "order.readable_blocks_are_reused_oldest_first", "control/gpu_pool.py",
        "(lease.age, lease.ticket, lease))", "(NEW, lease.ticket, lease))",
    ),
)  # fmt: skip


def noticed(mistake: Mistake) -> bool:
    """In a process of its own, whose package has the mistake."""
    package = bare_package()
    with tempfile.TemporaryDirectory() as folder:
        for part in PURE:
            shutil.copytree(Path(package.__path__[0], part), Path(folder, part))
        file = Path(folder, mistake.file)
        source = file.read_text()
        if source.count(mistake.right) != 1:
            raise LookupError(f"{mistake.right!r} occurs {source.count(mistake.right)} times in {mistake.file}")
        file.write_text(source.replace(mistake.right, mistake.wrong))
        package.__path__ = [folder]
        topic, name = mistake.contract.split(".")
        return check(getattr(import_module(f"contracts.{topic}"), name), PATHS).word == BROKEN


def contract_names(topic: str) -> list[str]:
    bare_package()
    return [f"{topic}.{contract.__name__}" for contract in contracts_of(import_module(f"contracts.{topic}"))]


def main() -> int:
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        missed = [mistake for mistake, seen in zip(MISTAKES, pool.map(noticed, MISTAKES, 1), strict=True) if not seen]
        names = {name for topic in TOPICS for name in pool.apply(contract_names, [topic])}
    alone = names ^ {mistake.contract for mistake in MISTAKES}
    for name in sorted(alone):
        print(f"{name}: the contract or its mistake is missing", file=sys.stderr)
    for mistake in missed:
        print(f"{mistake.contract} holds in spite of {mistake.wrong!r} in {mistake.file}", file=sys.stderr)
    print(f"{len(MISTAKES) - len(missed)} of {len(MISTAKES)} mistakes break their contract")
    return 1 if missed or alone else 0


if __name__ == "__main__":
    raise SystemExit(main())
