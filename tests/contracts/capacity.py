"""What requests are charged, and what is left."""

from types import SimpleNamespace

from contracts.shapes import layout, ledger

from hisparse_ops.control.admission import AdmissionLedger
from hisparse_ops.control.config import CoordinatorConfig
from hisparse_ops.control.policy import WatermarkPolicy
from hisparse_ops.control.types import Limits


def nobody_is_charged_more_than_full_residency(tokens: int, step: int, groups: int, keys: int, hot: int) -> None:
    assert tokens >= 0 and step >= 1 and groups >= 1 and keys >= 0 and hot >= 1
    book = ledger(num_groups=groups, num_indexer_groups=keys, hot_blocks=hot)
    charge = book.charge_of(Limits(tokens, step))
    full = book.pages(tokens) * (groups + keys)
    assert 0 <= charge.blocks <= full
    assert charge.movable == (charge.blocks < full)


def more_tokens_never_cost_less(tokens: int, step: int, hot: int) -> None:
    assert tokens >= 0 and step >= 1 and hot >= 1
    book = ledger(num_groups=3, num_indexer_groups=2, hot_blocks=hot)
    assert book.charge_of(Limits(tokens, step)).blocks <= book.charge_of(Limits(tokens + 1, step)).blocks


def planner_and_ledger_ask_for_the_same(tokens: int, step: int) -> None:
    assert tokens >= 0 and step >= 1
    plan = layout(groups=3, hot_slots=4096, block_size=64)
    book = AdmissionLedger(plan, CoordinatorConfig(max_requests=1, max_pages=1))
    assert book.charge_of(Limits(tokens, step)).blocks == plan.reserve_blocks(tokens, step)


def admissions_never_promise_more_than_there_is(
    charged: int, movable: int, reserved: int, host_free: int, tokens: int, most: int, blocks: int, hot: int
) -> None:
    """Inductive: if it held before an admission, it holds after it."""
    assert hot >= 1 and charged >= 0 and movable >= 0 and 0 <= tokens <= most
    assert 0 <= reserved <= host_free and charged + (hot if movable > 1 else 0) <= blocks - 1
    book = ledger(hot_blocks=hot, num_blocks=blocks, host_blocks=1 << 20)
    book.charged, book.movable, book.reserved_pages = charged, movable, reserved
    limits = Limits(most, 1)
    if book.refusal(limits, tokens, 0, host_free, 0) is None:
        book.admit(SimpleNamespace(limits=limits), book.pages(tokens))
        assert book.charged + (hot if book.movable > 1 else 0) <= blocks - 1
        assert book.reserved_pages <= host_free


def what_comes_back_does_not_cause_pressure(blocks: int, hot: int, divisor: int, free: int, cost: int) -> None:
    """Not even when another request is moved right after it."""
    assert blocks >= 0 and hot >= 0 and divisor >= 1 and cost >= 0
    policy = WatermarkPolicy(blocks, hot, divisor)
    assert not policy.room(free, cost) or not policy.pressure(free - cost - hot)
