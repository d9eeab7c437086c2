"""Long histories of a small machine: requests come, grow, lose and regain pages, rewrite rows, share host blocks
and finish, while steps resolve and gather. Two judges watch every step.

- `reference.py` does each op again on a second set of tensors: bit for bit the same.
- A dictionary says what bytes each (request, position, layer) has. Whatever `resolve` sends a reader to must
  hold them. It knows no blocks, tables or slots.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from comparison import assert_equal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from torch import Tensor
from worlds import FIRST_HOST_BLOCK, FIRST_HOT_BLOCK, FIRST_RESIDENT_BLOCK, block_major, ints

from hisparse_ops import HotState, reference

STATES, PAGES, SLOTS = 3, 5, 5
BLOCK, LAYERS, WIDTH = 2, 2, 4
STRIDE = BLOCK * LAYERS
HOT_BLOCKS = -(-SLOTS // BLOCK)
HOST_BLOCKS, RESIDENT_BLOCKS = 16, 8
GARBAGE = 0xEE
POSITIONS = PAGES * BLOCK

fired: Counter[str] = Counter()


@dataclass
class Side:
    """What the ops change: one set for `torch.ops.hisparse`, one for the reference."""

    host: list[Tensor]
    device: list[Tensor]
    hot: HotState


@dataclass
class Request:
    number: int
    length: int = 0
    shared_pages: set[int] = field(default_factory=set)


class History(RuleBasedStateMachine):
    @initialize(random=st.randoms(use_true_random=False))
    def start(self, random: Any) -> None:
        rows = (FIRST_HOST_BLOCK + HOST_BLOCKS) * BLOCK
        memory = torch.full((rows, LAYERS * WIDTH), GARBAGE, dtype=torch.uint8)
        blocks = FIRST_HOT_BLOCK + STATES * HOT_BLOCKS
        self.real = Side(
            [memory[:, layer * WIDTH : (layer + 1) * WIDTH] for layer in range(LAYERS)],
            block_major(blocks, BLOCK, LAYERS, WIDTH, fill=GARBAGE),
            HotState.allocate(STATES, SLOTS),
        )
        self.oracle = copy.deepcopy(self.real)
        self.host_table, self.resident_table = (torch.zeros(STATES, PAGES, dtype=torch.int32) for _ in range(2))
        self.hot_table = torch.zeros(STATES, HOT_BLOCKS, dtype=torch.int32)
        self.free_host = [FIRST_HOST_BLOCK + i for i in range(HOST_BLOCKS)]
        self.free_resident = [FIRST_RESIDENT_BLOCK + i for i in range(RESIDENT_BLOCKS)]
        self.free_hot = [FIRST_HOT_BLOCK + i for i in range(STATES * HOT_BLOCKS)]
        for free in (self.free_host, self.free_resident, self.free_hot):
            random.shuffle(free)
        self.live: dict[int, Request] = {}  # by state row
        self.content: dict[tuple[int, int, int], list[int]] = {}
        self.requests = self.versions = 0

    # What the rules are made of

    def both(self, op: str, arguments: Callable[[Side], tuple[Any, ...]]) -> Any:
        """Runs an op on both sides and returns what it answered."""
        fired[op] += 1
        answers = getattr(torch.ops.hisparse, op)(*arguments(self.real))
        assert_equal(answers, getattr(reference, op)(*arguments(self.oracle)))
        assert_equal(arguments(self.real), arguments(self.oracle))
        self.real.hot.check()
        return answers

    def write(self, state: int, position: int) -> None:
        """New bytes for a token: on its resident page and from there to the host, or on the host alone."""
        self.versions += 1
        page, offset = divmod(position, BLOCK)
        resident = int(self.resident_table[state, page])
        for layer in range(LAYERS):
            name = [self.versions // 251 % 251, self.versions % 251, position, 100 + layer]
            self.content[self.live[state].number, position, layer] = name
            for side in (self.real, self.oracle):
                if resident:
                    side.device[layer][resident * STRIDE + offset] = torch.tensor(name, dtype=torch.uint8)
                else:
                    host_row = int(self.host_table[state, page]) * BLOCK + offset
                    side.host[layer][host_row] = torch.tensor(name, dtype=torch.uint8)
        if resident:
            at = ints([position, -1]), ints([state, state])
            device_rows = self.both("translate", lambda _: (*at, self.resident_table, BLOCK, STRIDE))
            host_rows = self.both("translate", lambda _: (*at, self.host_table, BLOCK, BLOCK))
            self.both("mirror_rows", lambda side: (side.device, side.host, device_rows, host_rows))

    def retire(self, blocks: list[int], free: list[int]) -> None:
        """Device blocks go back to the pool, and somebody else scribbles over them."""
        for block in blocks:
            free.append(block)
            for side in (self.real, self.oracle):
                for layer in side.device:
                    layer[block * STRIDE : block * STRIDE + BLOCK] = GARBAGE

    def reset(self, state: int) -> None:
        self.both("reset_rows", lambda side: (*list(side.hot.buffers())[:3], ints([state, -1])))

    # Rules

    @precondition(lambda self: len(self.live) < STATES)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """A new request, perhaps with full pages of another one as its prefix."""
        state = data.draw(st.sampled_from([s for s in range(STATES) if s not in self.live]))
        self.requests += 1
        request = self.live[state] = Request(self.requests)
        parents = [s for s in self.live if self.live[s].length >= BLOCK]
        if parents and data.draw(st.booleans()):
            fired["share"] += 1
            parent = data.draw(st.sampled_from(parents))
            pages = data.draw(st.integers(1, self.live[parent].length // BLOCK))
            self.host_table[state, :pages] = self.host_table[parent, :pages]
            for shares in (request, self.live[parent]):
                shares.shared_pages |= set(range(pages))
            request.length = pages * BLOCK
            for position in range(request.length):
                for layer in range(LAYERS):
                    parents_content = self.content[self.live[parent].number, position, layer]
                    self.content[request.number, position, layer] = parents_content

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def append(self, data: st.DataObject, tokens: int) -> None:
        state = data.draw(st.sampled_from(sorted(self.live)))
        for _ in range(tokens):
            position = self.live[state].length
            page = position // BLOCK
            if page == PAGES or (position % BLOCK == 0 and not (self.free_host and self.free_resident)):
                return
            if position % BLOCK == 0:
                self.host_table[state, page] = self.free_host.pop()
                self.resident_table[state, page] = self.free_resident.pop()
            self.live[state].length += 1
            self.write(state, position)
            fired["append"] += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop_page(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(sorted(self.live)))
        pages = self.resident_table[state].nonzero().flatten().tolist()
        if pages:
            page = data.draw(st.sampled_from(pages))
            self.retire([int(self.resident_table[state, page])], self.free_resident)
            self.resident_table[state, page] = 0
            fired["drop"] += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def restore_page(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(sorted(self.live)))
        gone = ((self.resident_table[state] == 0) & (self.host_table[state] > 0)).nonzero().flatten().tolist()
        if gone and self.free_resident:
            page, block = data.draw(st.sampled_from(gone)), self.free_resident.pop()
            pair = ints([self.host_table[state, page], 0]), ints([block, block])
            self.both("copy_blocks", lambda side: (side.host, side.device, *pair, BLOCK, BLOCK, STRIDE))
            self.resident_table[state, page] = block

    @precondition(lambda self: any(r.length for r in self.live.values()))
    @rule(data=st.data())
    def rewrite(self, data: st.DataObject) -> None:
        """A token is computed again. Its old bytes may lie in the hot buffer."""
        state = data.draw(st.sampled_from([s for s in sorted(self.live) if self.live[s].length]))
        position = data.draw(st.integers(0, self.live[state].length - 1))
        if position // BLOCK not in self.live[state].shared_pages:
            self.write(state, position)
            host_row = int(self.host_table[state, position // BLOCK]) * BLOCK + position % BLOCK
            pairs = ints([state, -1]), ints([host_row, host_row])
            self.both("invalidate", lambda side: (side.hot.slot_rows, *pairs))
            fired["rewrite"] += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), blocks=st.integers(1, HOT_BLOCKS))
    def lease_or_return_hot_region(self, data: st.DataObject, blocks: int) -> None:
        state = data.draw(st.sampled_from(sorted(self.live)))
        if self.hot_table[state].any():
            self.return_hot_region(state)
        elif blocks <= len(self.free_hot):
            self.hot_table[state, :blocks] = ints([self.free_hot.pop() for _ in range(blocks)])
            fired["lease"] += 1

    def return_hot_region(self, state: int) -> None:
        leased = [block for block in self.hot_table[state].tolist() if block]
        self.retire(leased, self.free_hot)
        self.hot_table[state] = 0
        self.reset(state)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep_hot_region=st.booleans())
    def finish(self, data: st.DataObject, keep_hot_region: bool) -> None:
        """The next owner of the state row may keep its hot region, as long as recycled host blocks are invalidated."""
        state = data.draw(st.sampled_from(sorted(self.live)))
        old = [block for block in self.host_table[state].tolist() if block]
        self.host_table[state] = 0
        self.retire([block for block in self.resident_table[state].tolist() if block], self.free_resident)
        self.resident_table[state] = 0
        recycled = [block for block in old if not self.host_table.eq(block).any()]
        self.both("invalidate_blocks", lambda side: (side.hot.slot_rows, ints([*recycled, -1]), BLOCK))
        self.free_host += recycled
        if not keep_hot_region:
            self.return_hot_region(state)
        del self.live[state]
        fired["finish"] += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), columns=st.integers(1, 6), padding=st.integers(0, 2))
    def step(self, data: st.DataObject, columns: int, padding: int) -> None:
        """Resolve and gather for some requests, and read what came of it."""
        batch = data.draw(st.lists(st.sampled_from([*sorted(self.live), -1]), min_size=1, max_size=4))
        states = [s for i, s in enumerate(batch) if s < 0 or s not in batch[:i]]
        starts, topk = [0], []
        for state in states:
            length = self.live[state].length if state >= 0 else 0
            mapped = -(-length // BLOCK) * BLOCK
            legal = st.one_of(
                *([st.integers(0, length - 1)] * 3 if length else []),
                st.sampled_from([-1, -7, POSITIONS, 2**31 - 1]),
                *([st.integers(mapped, POSITIONS - 1)] if mapped < POSITIONS else []),
            )
            for _ in range(data.draw(st.integers(0, 3))):
                topk.append(data.draw(st.lists(legal, min_size=columns, max_size=columns)))
            starts.append(len(topk))
        topk += [[0] * columns] * padding
        asked = ints(topk).reshape(len(topk), columns), ints(starts), ints(states)
        tables = self.host_table, self.resident_table, self.hot_table
        device_rows, _, miss_host, miss_device, counts = self.both(
            "resolve", lambda side: (*asked, *tables, *side.hot.buffers(), BLOCK, STRIDE)
        )
        plan = miss_host, miss_device, asked[1], counts
        self.both("gather_compact", lambda side: (side.host, side.device, *plan))

        for state, first, last in zip(states, starts, starts[1:], strict=False):
            for row in range(first, last):
                self.read(state, topk[row], device_rows[row].tolist())
        assert device_rows[starts[-1] :].eq(-1).all()

    def read(self, state: int, positions: list[int], rows: list[int]) -> None:
        for position, row in zip(positions, rows, strict=True):
            known = state >= 0 and 0 <= position < self.live[state].length
            if row < 0:
                # Only what nobody has, or what needed a hot buffer that was too small, is not served.
                assert not known or not self.resident_table[state, position // BLOCK]
                continue
            assert known
            for layer in range(LAYERS):
                expected = self.content[self.live[state].number, position, layer]
                assert self.real.device[layer][row].tolist() == expected
            fired["served"] += 1


def test_histories() -> None:
    fired.clear()
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    rules = {"share", "append", "drop", "rewrite", "lease", "finish", "served"}
    ops = {"resolve", "gather_compact", "mirror_rows", "translate", "copy_blocks"}
    assert fired.keys() >= rules | ops | {"invalidate", "invalidate_blocks", "reset_rows"}
