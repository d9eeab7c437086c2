"""`check` can fail: each invariant is shown a state that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control.fake_engine import FakeEngine, Shape

from hisparse_ops.control.invariants import INVARIANTS
from hisparse_ops.control.pages import Page, PageState
from hisparse_ops.control.request import Request
from hisparse_ops.control.state import ControlState
from hisparse_ops.control.types import GpuBlock, HostBlock


def world() -> tuple[ControlState, Request]:
    """A moved request of twenty pages, some unpinned, one transfer under way; a published prefix."""
    engine = FakeEngine(Shape(num_blocks=201))
    engine.admit("a", list(range(80)), prompt=4)
    engine.run("a", until=76)
    engine.scarce()
    engine.step()
    engine.step({"a": 4})
    engine.plan()
    engine.check()
    return engine.c._state, engine.c._state.live["a"]


def force(request: Request, page: Page, state: PageState) -> None:
    """Change a page's state behind the transition table's back."""
    request.pages.in_state[page.state].discard(page.index)
    page.state = state
    request.pages.in_state[state].add(page.index)


def of(request: Request, state: PageState) -> Page:
    return request.pages[min(request.pages.in_state[state])]


S = PageState
BREAK: dict[str, Callable[[ControlState, Request], object]] = {
    "s1": lambda s, r: setattr(of(r, S.CLEAN_PINNED), "kv", None),
    "s2": lambda s, r: force(r, of(r, S.CLEAN_UNPINNED), S.FRESH),
    "s3": lambda s, r: setattr(r, "frontier", r.frontier - 1),
    "s4": lambda s, r: setattr(r, "sealed_pages", r.sealed_pages - 1),
    "s5": lambda s, r: setattr(of(r, S.CLEAN_UNPINNED).kv, "watchers", ()),
    "s6": lambda s, r: setattr(r, "hot", None),
    "s7": lambda s, r: force(r, r.pages[-1 + len(r.pages) - 1], S.CLEAN_UNPINNED),
    "s14": lambda s, r: s.detached.update({r: None}),
    "s16": lambda s, r: setattr(of(r, S.CLEAN_PINNED).kv, "blocks", (GpuBlock(1),)),
    "b1": lambda s, r: s.gpu.share(of(r, S.CLEAN_PINNED).keys),
    "b2": lambda s, r: s.host.share(r.pages[0].host),
    "b3": lambda s, r: s.host._cached.update({HostBlock(1000): None}),
    "b5": lambda s, r: s.prefix.add(12345, HostBlock(1000)),
    "b7": lambda s, r: setattr(of(r, S.CLEAN_PINNED), "transfer", 77),
    "b14": lambda s, r: r.pages.in_state[S.FRESH].add(0),
    "ledger": lambda s, r: setattr(s.ledger, "charged", s.ledger.charged + 1),
    "null": lambda s, r: s.gpu._blank.append(GpuBlock(0)),
}


@pytest.mark.parametrize("name", BREAK)
def test_a_broken_state_is_found(name: str) -> None:
    state, request = world()
    BREAK[name](state, request)
    failures = []
    for invariant in INVARIANTS:
        try:
            invariant(state)
        except (AssertionError, AttributeError):
            failures.append(invariant.__name__)
    prefix = {"s7": "s6_s7", "null": "b3_b4", "s6": "s6_s7"}.get(name, name)
    assert any(failure.startswith(prefix) for failure in failures), failures


def test_check_names_the_invariant_and_its_sentence() -> None:
    engine = FakeEngine()
    engine.c._state.ledger.charged = 1
    with pytest.raises(AssertionError, match=r"ledger_sums[\s\S]*never promises more than there is"):
        engine.c.check()


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda f: f.__name__)
def test_each_says_what_it_means(invariant: Callable[[ControlState], None]) -> None:
    assert invariant.__doc__ and len(invariant.__doc__) > 20
