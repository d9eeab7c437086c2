"""Long seeded runs under load: pools always nearly full, several steps in flight, few faults.

Hypothesis explores short schedules widely (`test_machine.py`); these go deep instead.
"""

from __future__ import annotations

from random import Random

import pytest
from control.fake_engine import FakeEngine, Shape, config
from control.fake_worker import Faults

from hisparse_ops.control.types import RefusalReason, Refused

STEPS = 150
FAMILIES = 3  # kinds of common prefixes


def run(engine: FakeEngine, random: Random, lossy: bool) -> None:
    names = 0
    for _ in range(STEPS):
        while len(engine.live) < 6:
            tokens = [random.randrange(FAMILIES)] * random.choice([0, 9, 30, 50]) + [100 + names] * random.randint(
                1, 40
            )
            names += 1
            answer = engine.admit(
                f"r{names}", tokens, random.randint(1, len(tokens)), reuse=random.choice([None, None, 21])
            )
            if isinstance(answer, Refused):
                break
            if random.random() < 0.15:
                engine.begin_import(f"r{names}", random.randint(max(1, answer.cached_tokens), len(tokens)))
        ready = [name for name in engine.live if name not in engine.importing and random.random() < 0.9]
        drafts = {name: random.choice([0, 0, 3]) for name in ready}
        unmirrored = {name: 1 for name in ready if lossy and random.random() < 0.01}
        engine.plan({name: random.choice([1, 5]) for name in ready}, drafts, unmirrored)
        engine.check()
        while max(map(len, engine.queues.values())) > random.randint(0, 2):
            rank = max(engine.queues, key=lambda r: len(engine.queues[r]))
            fails = [lossy and random.random() < 0.02 for _ in range(3)]
            engine.execute(rank, Faults(*fails))
        if random.random() < 0.7:
            engine.copy_engines()
        random.shuffle(engine.mail)
        for _ in range(random.randint(0, len(engine.mail))):
            engine.deliver(keep=random.random() < 0.1)
        if lossy and engine.mail and random.random() < 0.02:
            engine.mail.pop()
        for name in [n for n in engine.importing if engine.may_write(n) and random.random() < 0.5]:
            ok = random.random() < 0.7
            engine.transport(name, None if ok else 1)
            engine.end_import(name, ok, replay=random.randint(0, 1))
        for name, who in list(engine.live.items()):
            if (who.done and name not in engine.importing) or random.random() < 0.01:
                engine.finish(name)
            elif random.random() < 0.02:
                engine.preempt(name)
        engine.check()


@pytest.mark.parametrize("lossy", [False, True], ids=["calm", "lossy"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "lazy"])
@pytest.mark.parametrize("seed", range(6))
def test_soak(seed: int, eager: bool, lossy: bool) -> None:
    random = Random(seed)
    ranks, writers = random.choice([((0,), (0,)), ((0, 1), (0,)), ((0, 1), (0, 1))])
    shape = Shape(num_blocks=random.choice([81, 121, 201]), host_blocks=random.choice([41, 81, 161]))
    engine = FakeEngine(shape, config(ranks=ranks, writer_ranks=writers, eager_mirror=eager))
    run(engine, random, lossy)
    engine.execute_all()
    for name in list(engine.importing):
        engine.end_import(name, ok=False)
    engine.drain()
    if not lossy:
        assert engine.c.snapshot().quarantined == 0
        assert not engine.refusals[RefusalReason.GPU_BLOCKS], "an admitted request found no GPU blocks"
