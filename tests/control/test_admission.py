"""The ledger's sums and the policy's choices: small functions, tried by hand."""

from __future__ import annotations

import pytest
from control.fake_engine import Shape, config
from hypothesis import given
from hypothesis import strategies as st

from hisparse_ops.control.admission import AdmissionLedger, Charge
from hisparse_ops.control.policy import Candidate, WatermarkPolicy
from hisparse_ops.control.types import Limits, RefusalReason, Refused


def ledger(**changes: object) -> AdmissionLedger:
    return AdmissionLedger(Shape(), config(**changes))


@pytest.mark.parametrize(
    ("tokens", "step", "charge"),
    [
        (1, 1, Charge(3, False)),  # one page in 2 groups, and its index keys
        (20, 1, Charge(15, False)),  # 5 pages; reduced would be 5 + 4 + 2 * 4 = 17
        (28, 1, Charge(19, True)),  # 7 pages are 21 blocks; 7 + 4 + 2 * (1 + 1 + 2)
        (80, 8, Charge(34, True)),  # 20 + 4 + 2 * (2 + 1 + 2)
        (80, 64, Charge(60, False)),  # a window of all pages: moving it would gain nothing
    ],
)
def test_what_a_request_is_charged(tokens: int, step: int, charge: Charge) -> None:
    assert ledger().charge_of(Limits(tokens, step)) == charge


def test_every_indexer_group_is_charged_for() -> None:
    books = AdmissionLedger(Shape(num_indexer_groups=2), config())
    assert books.charge_of(Limits(80, 8)) == Charge(2 * 20 + 4 + 2 * (2 + 1 + 2), True)


@pytest.mark.parametrize("short", [0, 1], ids=["enough", "one block short"])
def test_a_second_movable_request_leaves_a_region_to_move_with(short: int) -> None:
    limits = Limits(80, 8)  # charged 34
    books = AdmissionLedger(Shape(num_blocks=1 + 34 + 34 + 4 - short), config())
    books.movable, books.charged = 1, 34
    answer = books.refusal(limits, 8, gpu_free=60, host_free=60, host_shared=0)
    assert answer == (Refused(RefusalReason.GPU_BLOCKS, 34, 33) if short else None)


def test_without_a_host_tier_nobody_moves() -> None:
    assert ledger(host_tier=False).charge_of(Limits(80, 8)) == Charge(60, False)


@given(st.integers(1, 400), st.integers(1, 64))
def test_a_charge_is_never_more_than_full_residency(tokens: int, step: int) -> None:
    charge = ledger().charge_of(Limits(tokens, step))
    full = 3 * -(-tokens // 4)
    assert charge.blocks <= full and charge.movable == (charge.blocks < full)


def candidate(frees: int, costs: int) -> Candidate:
    return Candidate(None, frees, costs)  # type: ignore[arg-type]


def test_the_watermark() -> None:
    """Pressure = free < max(hot region, blocks // 10)."""
    assert WatermarkPolicy(69, 4, 10).mark == 6 and WatermarkPolicy(60, 24, 10).mark == 24
    policy = WatermarkPolicy(60, 4, 10)
    assert [policy.pressure(free) for free in (5, 6)] == [True, False]


def test_coming_back_takes_more_room_than_staying() -> None:
    policy = WatermarkPolicy(60, 4, 10)
    assert policy.room(30, 20) and not policy.room(29, 20)
    assert WatermarkPolicy(70, 1, 10).return_mark == 7 + 3
    assert not policy.pressure(29 - 20), "between the marks nothing moves either way"


def test_one_at_a_time_most_freed_first_least_missing_back_first() -> None:
    policy = WatermarkPolicy(60, 4, 10)
    candidates = [candidate(10, 4), candidate(30, 4), candidate(20, 4)]
    assert policy.victim(candidates) is candidates[1] and policy.victim([]) is None
    back = [candidate(4, 10), candidate(4, 2)]
    assert policy.returning(back) is back[1] and policy.returning([]) is None


def test_a_refusal_says_what_is_needed_of_what_there_is() -> None:
    books = ledger()
    assert books.refusal(Limits(40, 4), 40, 60, 9, 0) == Refused(RefusalReason.HOST_BLOCKS, 10, 9)
    assert books.refusal(Limits(40, 4), 40, 60, 9, 1) is None, "a page that is shared takes no block"
    books.charged = 41
    charge = books.charge_of(Limits(40, 4)).blocks
    assert books.refusal(Limits(40, 4), 40, 60, 60, 0) == Refused(RefusalReason.GPU_BLOCKS, charge, 60 - 41)
