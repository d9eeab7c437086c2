"""Prefix hits: what counts, where it lands, what is adopted, and what ends it."""

from __future__ import annotations

from itertools import product

import pytest
from control.fake_engine import FakeEngine, Shape, Tokens, config
from control.fake_worker import Faults

from hisparse_ops.control.gpu_pool import Lease
from hisparse_ops.control.types import Admitted, Limits, RefusalReason, Refused, TransferKind

PROMPT = list(range(24))  # six pages
SIZE = 4


def hashes(tokens: int = 24) -> list[int]:
    return Tokens("", PROMPT, 24).hashes(tokens, SIZE)


def published(engine: FakeEngine | None = None) -> FakeEngine:
    """An engine in which a finished request has left six pages, all with readable copies."""
    engine = engine or FakeEngine(Shape(num_blocks=201))
    engine.admit("first", [*PROMPT, 100], prompt=24)
    engine.run("first")
    engine.finish("first")
    engine.settle(2)
    assert engine.c.cached_tokens(hashes()) == 24
    return engine


def lose(engine: FakeEngine, what: str, *pages: int) -> None:
    """Take copies or index keys of some pages away, as their reuse would."""
    state = engine.c._state
    for page in pages:
        block = state.prefix.get(hashes()[page])
        assert block is not None
        (state.kv_copies if what == "copies" else state.key_copies).drop(block)
    engine.check()


def lose_host(engine: FakeEngine, page: int) -> None:
    """Make the host pool evict one page, by making all others younger."""
    state = engine.c._state
    for index, token_hash in enumerate(hashes()):
        block = state.prefix.get(token_hash)
        if index != page and block is not None:
            state.host.share(block)
            state.host.release(block)
    taken = [state.host.lease() for _ in range(state.host.free - state.host.cached + 1)]
    for block in taken:
        state.host.release(block)
    engine.check()


def read_all(engine: FakeEngine, name: str) -> None:
    """Decode a token, so that every row of the hit is read and checked by the worker."""
    engine.run(name)


@pytest.mark.parametrize("order", [False, True], ids=["host longer", "keys longer"])
@pytest.mark.parametrize("copies", [0, 2, 4, 6])
def test_fault_48_the_common_length_of_rows_and_index_keys(order: bool, copies: int) -> None:
    engine = published()
    if order:
        lose_host(engine, 3)
    else:
        lose(engine, "keys", 3)
    lose(engine, "copies", *range(copies, 3))
    assert engine.c.cached_tokens(hashes()) == 12
    answer = engine.admit("next", [*PROMPT, 200], prompt=25)
    assert isinstance(answer, Admitted) and answer.cached_tokens == 12
    assert answer.adopted_pages == min(copies, 3)
    read_all(engine, "next")


@pytest.mark.parametrize(("lost", "resident"), list(product([(), (0,), (2, 3), tuple(range(6))], [True, False])))
def test_a_hit_is_adopted_restored_or_read_from_the_host(lost: tuple[int, ...], resident: bool) -> None:
    engine = published()
    lose(engine, "copies", *lost)
    if not resident:  # a movable request, and no room above the watermark
        engine.scarce()
    answer = engine.admit("next", [*PROMPT, *range(200, 280)], prompt=25)
    assert isinstance(answer, Admitted) and answer.cached_tokens == 24
    plan = engine.plan({"next": 1})
    restores = [transfer for transfer in plan.transfers if transfer.kind is TransferKind.RESTORE]
    if resident:
        assert answer.adopted_pages == 6 - len(lost) and len(restores) == len(lost) and not plan.hot
        assert all(restore.moves_data for restore in restores)
    else:
        assert answer.adopted_pages == 0 and not restores and len(plan.hot) == 1, "nobody pins a copy anyway"
    engine.execute_all()
    engine.deliver_all()
    engine.check()


@pytest.mark.parametrize("short", [0, 1], ids=["enough", "one block short"])
def test_a_hit_lands_resident_if_all_of_it_fits_above_the_watermark(short: int) -> None:
    engine = published()
    blocks, mark, gpu = 6 * 3, 200 // 10, engine.c._state.gpu
    held = gpu.lease(gpu.free - blocks - mark + short)
    answer = engine.admit("next", [*PROMPT, *range(200, 280)], prompt=25)
    assert answer == Admitted(1, 24, 0 if short else 6) and engine.c.is_host_readable("next") == bool(short)
    gpu.release(held)


def test_a_hit_is_refused_unless_all_its_blocks_are_there() -> None:
    """What a live request holds costs nothing, what is readable leaves the free queue, what is lost is restored."""
    engine = published()
    engine.admit("reader of page 0", [*PROMPT, 100], prompt=25, reuse=4)
    lose(engine, "copies", 4, 5)
    needed, gpu = 5 * 3, engine.c._state.gpu
    held, last = gpu.lease(gpu.free - needed), gpu.lease(1)
    assert engine.admit("next", [*PROMPT, 200], prompt=25) == Refused(RefusalReason.GPU_BLOCKS, needed, needed - 1)
    gpu.release(last)
    assert engine.admit("next", [*PROMPT, 200], prompt=25) == Admitted(2, 24, 4)
    assert gpu.free == 0
    gpu.release(held)


@pytest.mark.parametrize(
    ("more", "free", "then"),
    [
        (80, 6 * 2 + 4, "restored"),
        (80, 6 * 2 + 3, "host-readable"),
        (80, 4, "host-readable"),
        (80, 3, "waits"),
        (1, 6 * 2, "restored"),
        (1, 6 * 2 - 1, "waits"),
    ],
)
def test_how_a_hit_whose_restores_failed_is_helped(more: int, free: int, then: str) -> None:
    """Its pages are restored if they fit beside the hot region that is kept while a request may have to be moved.
    Else it reads them through that region, if it may be moved, and the region is there."""
    engine = published()
    lose(engine, "copies", *range(6))
    engine.admit("next", [*PROMPT, *range(200, 200 + more)], prompt=25)
    engine.plan()
    engine.execute_all(Faults(fail_restores=True))
    engine.deliver_all()
    engine.c._state.gpu.lease(engine.c._state.gpu.free - free)
    restores = len(engine.plan().transfers)
    assert (restores, engine.c.is_host_readable("next")) == (6 * (then == "restored"), then == "host-readable")
    engine.plan()
    assert engine.c.is_readable("next") == (then != "waits")
    assert engine.c.snapshot().totals.moved_requests <= 1, "one region is enough"


def test_copies_that_somebody_pins_are_adopted_on_any_landing() -> None:
    engine = published()
    assert engine.admit("second", [*PROMPT, *range(200, 280)], prompt=25) == Admitted(1, 24, 6)
    engine.scarce()
    assert engine.admit("third", [*PROMPT, *range(300, 380)], prompt=25) == Admitted(2, 24, 6)
    assert not engine.c.is_host_readable("third")


@pytest.mark.parametrize(
    ("prompt", "reuse", "cached"),
    [(25, None, 24), (24, None, 20), (23, None, 20), (4, None, 0), (1, None, 0), (25, 11, 8), (25, 3, 0), (25, 0, 0)],
)
def test_how_much_of_a_hit_is_used(prompt: int, reuse: int | None, cached: int) -> None:
    """Whole pages, at least one token to compute, no more than the engine wants."""
    engine = published()
    tokens = [*PROMPT, 200, 201]
    answer = engine.admit("next", tokens, prompt=prompt, reuse=reuse)
    assert isinstance(answer, Admitted) and answer.cached_tokens == cached
    read_all(engine, "next")


def test_nobody_writes_into_a_shared_page() -> None:
    engine = published()
    engine.admit("a", [*PROMPT, 200, 201], prompt=24)
    engine.admit("b", [*PROMPT, 300, 301], prompt=25)
    for name in "ab":
        engine.run(name)
        engine.finish(name)
    engine.settle()
    assert engine.c.cached_tokens(hashes()) == 24


def test_fault_37_a_copy_handed_out_before_its_adoption() -> None:
    engine = FakeEngine(Shape(num_blocks=41))
    published(engine)
    engine.admit("filler", [9] * 36, prompt=36, step=36)
    engine.run("filler", rows=36)
    state = engine.c._state
    copies = dict(state.kv_copies.items())
    assert len(copies) < 6 + 9 and all(lease.whole for lease in copies.values())
    engine.finish("filler")
    engine.settle()
    answer = engine.admit("next", [*PROMPT, 200], prompt=25)
    assert isinstance(answer, Admitted) and answer.adopted_pages < 6
    read_all(engine, "next")


def squeezed(engine: FakeEngine) -> Lease:
    """The copies of a hit are gone, a long request is resident, and six blocks are free: the others are held."""
    lose(engine, "copies", *range(6))
    engine.admit("a", list(range(300, 380)), prompt=4)
    engine.run("a", until=76)
    engine.step()
    gpu = engine.c._state.gpu
    return gpu.lease(gpu.free - 6)


def test_b12_a_hit_that_is_handed_out_while_room_is_made_for_it() -> None:
    """To make room a request is moved, and its hot region takes index keys of the very hit."""
    engine = published(FakeEngine(Shape(num_blocks=201)))
    held = squeezed(engine)
    assert engine.c.cached_tokens(hashes()) == 24
    answer = engine.admit("next", [*PROMPT, 200], prompt=25)
    assert engine.c.is_host_readable("a")
    assert answer == Admitted(2, 8, 0), "four pages of the hit are gone"
    engine.check_s2()
    engine.c._state.gpu.release(held)
    engine.run("next")


def test_b12_what_is_left_of_a_hit_may_be_too_little() -> None:
    """Its index keys are handed out, while its host blocks are still those of a request that has left."""
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=41))
    engine.admit("first", [*PROMPT, *range(100, 108)], prompt=24, step=32)
    engine.run("first", until=24, rows=32)
    engine.step()
    engine.plan({"first": 8})
    engine.execute_all()
    engine.mail.clear()
    engine.finish("first")
    engine.admit("a", list(range(300, 380)), prompt=4)
    engine.run("a", until=76)
    engine.step()
    lose(engine, "copies", *range(6))
    gpu, host = engine.c._state.gpu, engine.c._state.host
    held = gpu.lease(gpu.free - 6)
    blocks = [host.lease() for _ in range(host.free - 1)]
    assert engine.c.can_admit(hashes(), 25, Limits(25, 8)) and engine.c.snapshot().requests["detached"] == 1
    assert engine.admit("next", [*PROMPT, 200], prompt=25) == Refused(RefusalReason.HOST_BLOCKS, 5, 1)
    gpu.release(held)
    for block in blocks:
        host.release(block)


def test_nobody_is_moved_for_a_request_that_is_refused_all_the_same() -> None:
    engine = published(FakeEngine(Shape(num_blocks=201), config(max_requests=1)))
    held = squeezed(engine)
    assert engine.admit("next", [*PROMPT, 200], prompt=25) == Refused(RefusalReason.NO_STATE_ROW, 1, 0)
    assert not engine.c.is_host_readable("a")
    engine.c._state.gpu.release(held)


def test_fault_51_a_reused_block_has_lost_its_hash() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=11))
    published(engine)
    engine.admit("other", [7] * 32, prompt=32)
    engine.run("other")
    assert engine.c.cached_tokens(hashes()) < 24
    engine.finish("other")
    engine.settle()
    engine.check()
    engine.admit("again", [*PROMPT, 100], prompt=24)
    engine.run("again")
    engine.finish("again")
    engine.settle()
    assert engine.c.cached_tokens(hashes()) == 24


def test_fault_52_a_page_evicted_in_the_middle() -> None:
    engine = published()
    lose_host(engine, 2)
    assert engine.c.cached_tokens(hashes()) == 8
    engine.admit("next", [*PROMPT, 100], prompt=25)
    engine.run("next")
    engine.finish("next")
    engine.settle()
    assert engine.c.cached_tokens(hashes()) == 24, "it comes back with the next pass"


def test_fault_33_what_is_dropped_is_gone_from_look_up_while_its_reader_reads_on() -> None:
    engine = published()
    engine.admit("reader", [*PROMPT, *range(200, 230)], prompt=25)
    for page, what in enumerate(("keys", "copies")):
        lose(engine, what, page)
    block = engine.c._state.prefix.get(hashes()[2])
    assert block is not None
    engine.c._state.forget_hash(block, engine.c._state.host.drop_hash(block))
    assert engine.c.cached_tokens(hashes()) == 0
    engine.run("reader")


def test_pages_without_index_keys_are_published_anew_by_the_next_pass() -> None:
    engine = published()
    lose(engine, "keys", 0)
    assert engine.c.cached_tokens(hashes()) == 0
    engine.admit("next", [*PROMPT, 100], prompt=25)
    engine.run("next")
    engine.finish("next")
    engine.settle()
    assert engine.c.cached_tokens(hashes()) == 24 and engine.c.snapshot().published == 6


def test_twins_are_published_once() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    for name in ("a", "b"):
        engine.admit(name, [*PROMPT, ord(name)], prompt=24)
    for _ in range(4):
        engine.step({"a": 8})
    blocks = [engine.c._state.prefix.get(token_hash) for token_hash in hashes()]
    for _ in range(4):
        engine.step({"b": 8})
    assert engine.c.snapshot().published == 6
    assert [engine.c._state.prefix.get(token_hash) for token_hash in hashes()] == blocks, "the first stays"
    for name in ("a", "b"):
        engine.finish(name)
    engine.settle()
    assert engine.c.snapshot().host_cached == 6, "the twin's blocks are blank again"


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
def test_fault_50_a_request_that_finishes_as_a_page_becomes_full(eager: bool) -> None:
    engine = FakeEngine(settings=config(eager_mirror=eager))
    engine.admit("a", PROMPT, prompt=20)
    engine.run("a")
    engine.finish("a")
    assert engine.c.cached_tokens(hashes()) < 24
    engine.settle(3)
    assert engine.c.cached_tokens(hashes()) == 24 and engine.c.quiescent()
    assert engine.admit("next", [*PROMPT, 200], prompt=25) == Admitted(1, 24, 6)


def test_finish_without_publishing() -> None:
    engine = FakeEngine()
    engine.admit("a", PROMPT, prompt=24)
    engine.run("a", until=16)
    engine.finish("a", publish=False)
    engine.settle()
    assert engine.c.cached_tokens(hashes()) == 8, "what was published before stays"


def test_s14_l6_a_prefill_preempted_again_and_again_resumes_from_its_frontier() -> None:
    engine = FakeEngine(Shape(num_blocks=201))
    tokens, resumed = list(range(64)), []
    for _ in range(10):
        answer = engine.admit("a", tokens, prompt=60)
        assert isinstance(answer, Admitted)
        resumed.append(answer.cached_tokens)
        engine.step({"a": 8})
        engine.step()
        engine.preempt("a")
    assert resumed == [0, 8, 16, 24, 32, 40, 48, 56, 56, 56]


def test_a_lookup_while_the_spill_is_pending_finds_nothing_yet() -> None:
    engine = FakeEngine()
    engine.admit("a", [*PROMPT, 100], prompt=24)
    engine.plan({"a": 8})
    engine.execute_all()
    engine.plan()
    assert engine.c.cached_tokens(hashes()) == 0
    engine.execute_all()
    engine.deliver_all()
    assert engine.c.cached_tokens(hashes()) == 8


def test_hits_that_nobody_holds_are_evicted_tail_first() -> None:
    engine = FakeEngine(Shape(num_blocks=201, host_blocks=11))
    published(engine)
    engine.admit("other", [7] * 24, prompt=20)
    engine.run("other")
    left = engine.c.cached_tokens(hashes())
    assert 0 < left < 24 and engine.c._state.host.cached == left // SIZE


def test_kv_copies_go_before_index_keys() -> None:
    """Without index keys a hit ends; without a copy it only takes a transfer."""
    engine = FakeEngine(Shape(num_blocks=41))
    published(engine)
    engine.admit("other", [7] * 36, prompt=36, step=36)
    engine.run("other", rows=36)
    engine.finish("other", publish=False)
    engine.settle()
    state = engine.c._state
    blocks = [state.prefix.get(token_hash) for token_hash in hashes()]
    assert [b is not None and state.kv_copies.get(b) is not None for b in blocks] == [True] * 3 + [False] * 3
    assert engine.c.cached_tokens(hashes()) == 24
