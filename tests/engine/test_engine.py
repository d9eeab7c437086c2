"""End to end on a toy model: whatever the pools do, the logits are those of full residency, bit for bit."""

from __future__ import annotations

import gc
import itertools
import random
from weakref import ref

import pytest
import torch
from engine.toy_model import VOCAB, ToyModel

from hisparse_ops.control import CoordinatorConfig
from hisparse_ops.control.admission import AdmissionLedger
from hisparse_ops.control.types import Limits
from hisparse_ops.engine import Engine, EngineConfig, Phase, Request
from hisparse_ops.engine import engine as engine_module
from hisparse_ops.memory.layout import LayoutError, plan_layout
from hisparse_ops.worker.errors import UnreadableError
from hisparse_ops.worker.page_copies import PageCopies
from hisparse_ops.worker.worker import Worker

TOP_K = 8
CONTEXT = 112
PLENTY = 1 << 24  # bytes that any of these models plans with


def prompts(count: int, length: int, shared: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    prefix = tuple(draw.randrange(VOCAB) for _ in range(shared))
    return [prefix + tuple(draw.randrange(VOCAB) for _ in range(length - shared)) for _ in range(count)]


def model(block_size=16, dtype=torch.float32, hot=2) -> ToyModel:
    return ToyModel(top_k=TOP_K, block_size=block_size, dtype=dtype, hot_slots=hot * TOP_K)


def small_layout(toy: ToyModel, requests: float, chunk: int, host_tokens: int = 64 * CONTEXT):
    """Device blocks for `requests` times what one request needs at least with its history on the host."""
    anything = plan_layout(toy.spec, PLENTY, PLENTY)
    blocks = int(requests * anything.reserve_blocks(CONTEXT, chunk)) + 1
    pages = anything.pages(host_tokens) + 1
    return plan_layout(toy.spec, blocks * anything.block_bytes, pages * anything.host_block_bytes)


def resident_layout(toy: ToyModel):
    return plan_layout(toy.spec, PLENTY, 0)


def start(toy: ToyModel, layout, chunk: int, max_requests: int = 8) -> Engine:
    return Engine(toy, layout, EngineConfig(max_requests=max_requests, max_context=CONTEXT + 16, prefill_chunk=chunk))


def decode(toy: ToyModel, layout, requests: list[Request], chunk: int) -> Engine:
    with start(toy, layout, chunk) as engine:
        for request in requests:
            engine.add(request)
        engine.run(lambda e: e.check())
        return engine


def alone(toy: ToyModel, requests: list[Request], chunk: int) -> list[Request]:
    """The same requests, one after the other, on a device that holds everything."""
    fresh = [Request(r.id, r.prompt, r.max_new_tokens) for r in requests]
    for request in fresh:
        decode(toy, resident_layout(toy), [request], chunk)
    return fresh


def assert_same(got: list[Request], want: list[Request]) -> None:
    for mine, reference in zip(got, want, strict=True):
        assert mine.output == reference.output, f"request {mine.id}: other tokens"
        for step, (a, b) in enumerate(zip(mine.logits, reference.logits, strict=True)):
            assert torch.equal(a, b), f"request {mine.id}: logits of output token {step} differ"


@pytest.mark.parametrize("hot", [1, 2, 3, 5])
@pytest.mark.parametrize("block_size, chunk", [(1, 8), (16, 32), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_small_pool_gives_the_logits_of_full_residency(hot, block_size, chunk, dtype):
    toy = model(block_size, dtype, hot)
    requests = [Request(str(i), p, 12) for i, p in enumerate(prompts(3, 96))]
    want = alone(toy, requests, chunk)
    layout = small_layout(toy, 1.6, chunk)
    assert layout.num_blocks - 1 < 3 * layout.request_blocks(CONTEXT), "the pool must be too small for all"
    engine = decode(toy, layout, requests, chunk)
    assert_same(requests, want)
    figures = engine.figures()
    assert figures.faults == 0 and figures.spilled_pages > 0


def test_a_request_larger_than_the_device_pool_decodes_to_the_end():
    """Three times the pool: only index keys, a hot region and the pages being written fit."""
    toy, chunk = ToyModel(top_k=TOP_K, block_size=4, dtype=torch.float32, layers=12, leaders=(0, 4, 8)), 8
    request = Request("long", prompts(1, 360)[0], 20)
    config = EngineConfig(max_requests=1, max_context=384, prefill_chunk=chunk)
    want = Request("long", request.prompt, 20)
    anything = plan_layout(toy.spec, PLENTY, PLENTY)
    blocks = anything.reserve_blocks(request.max_tokens, chunk) + 1
    assert anything.request_blocks(request.max_tokens) > 3 * blocks
    small = plan_layout(toy.spec, blocks * anything.block_bytes, 1 << 20)
    for layout, mine in ((small, request), (resident_layout(toy), want)):
        with Engine(toy, layout, config) as engine:
            engine.add(mine)
            engine.run(lambda e: e.check())
    assert_same([request], [want])


def test_more_requests_run_at_once_than_fit_resident():
    toy, chunk = model(block_size=4), 8
    layout = small_layout(toy, 3.2, chunk)
    requests = [Request(str(i), p, 8) for i, p in enumerate(prompts(6, 96))]
    tiered = decode(toy, layout, requests, chunk).figures()
    again = [Request(r.id, r.prompt, 8) for r in requests]
    resident = decode(toy, plan_layout(toy.spec, layout.device_bytes, 0), again, chunk).figures()
    assert tiered.peak_requests > resident.peak_requests
    assert tiered.preemptions == 0 and tiered.misses > 0 and tiered.hot_hits > 0
    assert_same(requests, again)


def test_resident_pool_that_runs_full_preempts_and_the_logits_do_not_change():
    toy, chunk = model(block_size=4), 8
    requests = [Request(str(i), p, 40) for i, p in enumerate(prompts(4, 24))]
    anything = plan_layout(toy.spec, PLENTY, 0)
    blocks = 2 * anything.request_blocks(64) + anything.request_blocks(12) + 1
    layout = plan_layout(toy.spec, blocks * anything.block_bytes, 0)
    figures = decode(toy, layout, requests, chunk).figures()
    assert figures.preemptions > 0
    assert_same(requests, alone(toy, requests, chunk))


def test_host_pool_of_the_prompts_plus_three_pages_finishes_all():
    """Growth waits or preempts; published pages of the preempted are found again."""
    toy, chunk, block = model(block_size=4), 8, 4
    requests = [Request(str(i), p, 40) for i, p in enumerate(prompts(4, 24))]
    anything = plan_layout(toy.spec, PLENTY, PLENTY)
    pages = 4 * (24 // block) + 3 + 1
    layout = plan_layout(toy.spec, 1 << 20, pages * anything.host_block_bytes)
    figures = decode(toy, layout, requests, chunk).figures()
    assert figures.preemptions > 0
    assert_same(requests, alone(toy, requests, chunk))


@pytest.mark.parametrize("block_size, chunk", [(1, 8), (4, 8), (16, 32)])
def test_a_shared_prefix_is_computed_once_and_changes_no_bit(block_size, chunk):
    toy = model(block_size)
    first, second = prompts(2, 96, shared=64)
    with start(toy, small_layout(toy, 2.2, chunk), chunk) as engine:
        requests = [Request("first", first, 6), Request("second", second, 6)]
        for request in requests:  # one after the other, so that the second finds what the first published
            engine.add(request)
            engine.run(lambda e: e.check())
        assert engine.figures().reused_tokens == 64
    assert_same(requests, alone(toy, requests, chunk))


def test_a_conversation_goes_on_from_its_published_pages():
    """The next prompt repeats prompt and answer; rows of generated tokens are reused only where a rerun would
    compute them the same way."""
    toy, chunk = model(block_size=4), 8
    first = Request("turn 1", prompts(1, 30)[0], 30)
    with start(toy, small_layout(toy, 2.5, chunk), chunk) as engine:
        engine.add(first)
        engine.run(lambda e: e.check())
        second = Request("turn 2", first.prompt + tuple(first.output) + (1, 2, 3), 8)
        engine.add(second)
        engine.run(lambda e: e.check())
    assert_same([second], alone(toy, [second], chunk))


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_come_end_and_are_aborted_in_between(seed):
    toy, chunk = model(block_size=4), 8
    draw = random.Random(seed)
    texts = itertools.cycle(prompts(12, 64, shared=24, seed=seed))
    layout = small_layout(toy, 3.2, chunk, host_tokens=5 * CONTEXT)
    live: dict[str, Request] = {}
    with start(toy, layout, chunk) as engine:
        for number in range(160):
            if number < 120 and draw.random() < 0.15:
                request = Request(f"r{number}", next(texts)[: draw.randint(1, 64)], draw.randint(1, 24))
                engine.add(request)
                live[request.id] = request
            if live and draw.random() < 0.04:
                victim = live.pop(draw.choice(sorted(live)))
                if victim.phase in (Phase.WAITING, Phase.RUNNING):
                    engine.abort(victim.id)
                    assert victim.phase is Phase.ABORTED
            engine.step()
            engine.check()
        engine.run(lambda e: e.check())
        assert not engine.busy
        assert engine.figures().faults == 0
        kept = list(live.values())
    assert kept and all(r.phase is Phase.FINISHED for r in kept)
    assert_same(kept, alone(toy, kept, chunk))


def test_decoding_ends_at_a_stop_token():
    toy, chunk = model(), 32
    free = Request("free", prompts(1, 20)[0], 12)
    decode(toy, resident_layout(toy), [free], chunk)
    stop = free.output[5]
    stopped = Request("stopped", free.prompt, 12, stop_tokens=frozenset({stop}))
    decode(toy, resident_layout(toy), [stopped], chunk)
    assert stopped.output == free.output[: free.output.index(stop) + 1]


def test_planner_and_admission_charge_the_same():
    """Two sums of one thing, on either side of the wall between memory and control: they must not part."""
    for block_size, chunk, tokens in itertools.product((1, 4, 16), (16, 32), (1, 17, 64, 1000)):
        layout = small_layout(model(block_size), 2, chunk)
        ledger = AdmissionLedger(layout, CoordinatorConfig(max_requests=1, max_pages=1000))
        charge = ledger.charge_of(Limits(max_tokens=tokens, max_step_tokens=chunk))
        assert charge.blocks == layout.reserve_blocks(tokens, chunk)


def test_the_device_pool_goes_with_the_engine(monkeypatch):
    """At once, without the garbage collector: on a GPU the next engine needs that memory."""
    pools = []
    make = engine_module.KVPool
    monkeypatch.setattr(engine_module, "KVPool", lambda *args: pools.append(ref(pool := make(*args))) or pool)
    toy, chunk = model(block_size=4), 8
    gc.disable()
    try:
        decode(
            toy, small_layout(toy, 1.6, chunk), [Request(str(i), p, 12) for i, p in enumerate(prompts(3, 96))], chunk
        )
        assert [pool() for pool in pools] == [None]
    finally:
        gc.enable()


class TestBadInput:
    def test_chunk_that_is_no_multiple_of_the_block_size(self):
        with pytest.raises(ValueError, match="prefill_chunk is 24: expected a multiple of the block size 16"):
            start(model(16), resident_layout(model(16)), 24)

    def test_request_above_max_context(self):
        with start(model(), resident_layout(model()), 32) as engine, pytest.raises(ValueError, match="max_context"):
            engine.add(Request("r", (1,) * CONTEXT, 17))

    def test_live_id(self):
        with start(model(), resident_layout(model()), 32) as engine:
            engine.add(Request("r", (1,), 1))
            with pytest.raises(ValueError, match="'r' is live"):
                engine.add(Request("r", (2,), 1))

    def test_pool_too_small_for_one_request(self):
        toy = model(block_size=4)
        layout = small_layout(toy, 0.5, 8)
        with start(toy, layout, 8) as engine:
            with pytest.raises(LayoutError, match=r"needs \d+ GPU blocks .* give device_bytes >= \d+"):
                engine.add(Request("r", prompts(1, 100)[0], 8))
            assert not engine.busy, "a refused request leaves nothing behind"

    def test_abort_of_an_unknown_request(self):
        with start(model(), resident_layout(model()), 32) as engine, pytest.raises(KeyError):
            engine.abort("nobody")


def one_long_among_short() -> list[Request]:
    """When the short ones have ended there is room again, and the long one's pages come back from the host."""
    long, *short = prompts(4, 80)
    return [Request("long", long, 40), *(Request(str(i), text, 4) for i, text in enumerate(short))]


def layout_of(toy: ToyModel, share: float):
    """A device pool of `share` times one fully resident request."""
    anything = plan_layout(toy.spec, PLENTY, PLENTY)
    blocks = int(share * anything.request_blocks(CONTEXT))
    return plan_layout(toy.spec, blocks * anything.block_bytes, 1 << 22)


def test_pages_that_come_back_from_the_host_change_no_bit(monkeypatch):
    restored = []
    restore = PageCopies.restore
    monkeypatch.setattr(PageCopies, "restore", lambda self, pages: restored.extend(pages) or restore(self, pages))
    toy, chunk = model(block_size=4), 8
    requests = one_long_among_short()
    decode(toy, layout_of(toy, 1.3), requests, chunk)
    assert restored
    assert_same(requests, alone(toy, requests, chunk))


@pytest.mark.parametrize("failures", [1, 3])
def test_a_restore_that_fails_changes_no_bit(monkeypatch, failures):
    """The pages go on being read from the host."""
    attempts = []
    restore = PageCopies.restore
    monkeypatch.setattr(
        PageCopies,
        "restore",
        lambda self, pages: (attempts.append(pages) or len(attempts) > failures) and restore(self, pages),
    )
    toy, chunk = model(block_size=4), 8
    requests = one_long_among_short()
    decode(toy, layout_of(toy, 1.3), requests, chunk)
    assert len(attempts) >= failures
    assert_same(requests, alone(toy, requests, chunk))


def test_a_request_whose_context_did_not_arrive_starts_again_from_what_is_published(monkeypatch):
    kv, refused = Worker.kv, []

    def unreadable_once(self, state_row, start, length, prefill):
        if not prefill and not refused:
            refused.append(start)
            raise UnreadableError("a page of the context lies nowhere")
        return kv(self, state_row, start, length, prefill)

    toy, chunk = model(block_size=4), 8
    requests = [Request(str(i), p, 12) for i, p in enumerate(prompts(2, 48))]
    want = alone(toy, requests, chunk)
    monkeypatch.setattr(Worker, "kv", unreadable_once)
    figures = decode(toy, small_layout(toy, 2.2, chunk), requests, chunk).figures()
    assert refused and figures.preemptions == 1 and figures.reused_tokens > 0
    assert_same(requests, want)
