"""Where every row lives: pure planning, no torch.

| thing | made of |
|---|---|
| unit | a leader and its followers: they share one top-k, one hot state, one host tensor |
| group | units whose layers share a GPU block: layer i of the group sits at slot i of each of its blocks |
| indexer group | units whose index keys share a GPU block |
| GPU block | `layers_per_block` pages, one after the other; the same size for resident, hot and indexer leases |
| host block | the page of all layers: rows `b * block_size ..` in the host tensor of every unit |

Allocation uses the sizes stated here (`device_bytes`, `host_bytes`), so an estimate cannot differ
from what is really taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hisparse_ops.memory.packing import pack

ROW_ALIGNMENT = 4  # bytes: the kernels move rows in words of this size
MAX_ROWS = 2**31  # row numbers are int32
# Beyond the pages of its step, a request keeps the page that the step starts in and the last two of its row.
WINDOW_EXTRA_PAGES = 3


class LayoutError(ValueError):
    """A model description or a budget that no memory layout can serve."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LayoutError(message)


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


@dataclass(frozen=True)
class ModelSpec:
    """What planning must know of a model.

    `leaders` are the layers with an indexer; the layers up to the next leader follow it.
    `row_bytes` is one token's KV in one layer, `index_row_bytes` its index key in one leader.
    `max_query_len` is 1 plus the draft tokens of a verification step. `hot_slots` are the row places
    of a request's hot region, by default `(max_query_len + 1) * top_k`.

    Raises `LayoutError` naming the argument.
    """

    num_layers: int
    leaders: tuple[int, ...]
    row_bytes: int
    index_row_bytes: int
    block_size: int = 64
    top_k: int = 2048
    max_query_len: int = 1
    hot_slots: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "row_bytes", "index_row_bytes", "block_size", "top_k", "max_query_len"):
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be at least 1, got {value}")
        _require(
            self.row_bytes % ROW_ALIGNMENT == 0,
            f"row_bytes must be a multiple of {ROW_ALIGNMENT}, got {self.row_bytes}",
        )
        _require(
            self.leaders[:1] == (0,),
            f"leaders must start with layer 0, since a follower needs a leader before it, got {self.leaders}",
        )
        _require(
            all(a < b for a, b in pairwise(self.leaders)),
            f"leaders must be strictly ascending, got {self.leaders}",
        )
        _require(
            self.leaders[-1] < self.num_layers,
            f"leaders must be layers below num_layers={self.num_layers}, got {self.leaders[-1]}",
        )
        _require(
            self.slots < MAX_ROWS,
            f"hot_slots, by default (max_query_len + 1) * top_k, must stay below {MAX_ROWS}, got {self.slots}",
        )
        needed = self.max_query_len * self.top_k
        _require(
            self.slots >= needed,
            f"hot_slots must be at least max_query_len * top_k = {needed}, or the rows of one step "
            f"do not fit into the hot region together, got {self.slots}",
        )

    @property
    def slots(self) -> int:
        """`hot_slots`, or its default."""
        return (self.max_query_len + 1) * self.top_k if self.hot_slots is None else self.hot_slots


@dataclass(frozen=True)
class Unit:
    """An index group: `layers[0]` is the leader."""

    leader: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """A resident/hot pair. Layer `layers[i]` sits at slot i of each of the group's blocks."""

    units: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The plan: which rows lie where, and what everything costs. Made by `plan_layout`.

    `num_blocks` and `host_blocks` count the null block 0. `host_blocks` is 0 where there is no host tier.
    """

    spec: ModelSpec
    units: tuple[Unit, ...]
    groups: tuple[Group, ...]
    indexer_groups: tuple[tuple[int, ...], ...]  # unit numbers
    layers_per_block: int
    num_blocks: int
    host_blocks: int

    # Sizes of the pieces.

    @property
    def block_size(self) -> int:
        """Rows in a page."""
        return self.spec.block_size

    @property
    def page_bytes(self) -> int:
        """One page of one layer."""
        return self.block_size * self.spec.row_bytes

    @property
    def index_page_bytes(self) -> int:
        """One page of index keys of one leader."""
        return self.block_size * self.spec.index_row_bytes

    @property
    def block_bytes(self) -> int:
        """One GPU block."""
        return self.layers_per_block * self.page_bytes

    @property
    def block_stride(self) -> int:
        """Rows from one GPU block to the next in the flat row view of a layer."""
        return self.layers_per_block * self.block_size

    @property
    def host_block_bytes(self) -> int:
        """One host block: the page of all layers."""
        return self.spec.num_layers * self.page_bytes

    @property
    def hot_slots(self) -> int:
        """Row places of a hot region."""
        return self.spec.slots

    @property
    def hot_blocks(self) -> int:
        """GPU blocks of a hot region in one group."""
        return _ceil_div(self.hot_slots, self.block_size)

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    @property
    def num_indexer_groups(self) -> int:
        return len(self.indexer_groups)

    # What is allocated.

    @property
    def device_bytes(self) -> int:
        """The GPU pool, exactly as `KVPool` allocates it."""
        return self.num_blocks * self.block_bytes

    @property
    def host_bytes(self) -> int:
        """The host pool, exactly as `HostPool` allocates it."""
        return self.host_blocks * self.host_block_bytes

    # Where a layer lies.

    @cached_property
    def _places(self) -> dict[int, tuple[int, int, int]]:
        """layer -> (unit, group, slot)."""
        unit_of = {layer: number for number, unit in enumerate(self.units) for layer in unit.layers}
        return {
            layer: (unit_of[layer], number, slot)
            for number, group in enumerate(self.groups)
            for slot, layer in enumerate(group.layers)
        }

    def _place(self, layer: int) -> tuple[int, int, int]:
        if layer not in self._places:  # a negative layer must not wrap round to the last one
            raise LayoutError(f"layer must be one of 0..{self.spec.num_layers - 1}, got {layer}")
        return self._places[layer]

    def unit_of(self, layer: int) -> int:
        """Unit number of a layer."""
        return self._place(layer)[0]

    def group_of(self, layer: int) -> int:
        """Group number of a layer."""
        return self._place(layer)[1]

    def slot_of(self, layer: int) -> int:
        """Which page of its group's blocks belongs to the layer."""
        return self._place(layer)[2]

    @cached_property
    def _index_places(self) -> dict[int, tuple[int, int]]:
        """leader -> (indexer group, slot)."""
        return {
            self.units[unit].leader: (number, slot)
            for number, units in enumerate(self.indexer_groups)
            for slot, unit in enumerate(units)
        }

    def _index_place(self, leader: int) -> tuple[int, int]:
        if leader not in self._index_places:
            raise LayoutError(f"leader must be one of {self.spec.leaders}, got {leader}")
        return self._index_places[leader]

    def index_group_of(self, leader: int) -> int:
        """Indexer group of a leader."""
        return self._index_place(leader)[0]

    def index_slot_of(self, leader: int) -> int:
        """Which index page of its indexer group's blocks belongs to the leader."""
        return self._index_place(leader)[1]

    # What a request costs.

    def pages(self, num_tokens: int) -> int:
        """Pages of so many tokens."""
        return _ceil_div(num_tokens, self.block_size)

    def request_blocks(self, num_tokens: int) -> int:
        """GPU blocks of a fully resident request, its indexer pages included."""
        return self.pages(num_tokens) * (self.num_groups + self.num_indexer_groups)

    def request_bytes(self, num_tokens: int) -> int:
        """GPU bytes of a fully resident request."""
        return self.request_blocks(num_tokens) * self.block_bytes

    @property
    def bytes_per_token(self) -> int:
        """GPU bytes of one resident token in full pages."""
        return self.layers_per_block * self.spec.row_bytes * (self.num_groups + self.num_indexer_groups)

    @property
    def hot_region_blocks(self) -> int:
        """GPU blocks of a hot region in all groups."""
        return self.num_groups * self.hot_blocks

    @property
    def hot_region_bytes(self) -> int:
        return self.hot_region_blocks * self.block_bytes

    def reserve_blocks(self, max_tokens: int, max_step_tokens: int) -> int:
        """GPU blocks that a request needs at least, whatever is taken from it: its indexer pages, a hot
        region and a window of pages that are being written; or all of it resident, if that is less."""
        pages = self.pages(max_tokens)
        window = min(pages, self.pages(max_step_tokens) + WINDOW_EXTRA_PAGES)
        sparse = pages * self.num_indexer_groups + self.hot_region_blocks + window * self.num_groups
        return min(sparse, self.request_blocks(max_tokens))

    def check_request(self, max_tokens: int, max_step_tokens: int) -> None:
        """Raises `LayoutError` if a lone request of `max_tokens`, computed at most `max_step_tokens` at a
        time, does not fit into the pools."""
        if self.host_blocks:
            needed, where = self.reserve_blocks(max_tokens, max_step_tokens), "with its history on the host"
            host_needed, host_usable = self.pages(max_tokens), self.host_blocks - 1
            _require(
                host_needed <= host_usable,
                f"max_tokens={max_tokens} needs {host_needed} host blocks, the host pool has {host_usable}: "
                f"give host_bytes >= {(host_needed + 1) * self.host_block_bytes}",
            )
        else:
            needed, where = self.request_blocks(max_tokens), "fully resident"
        usable = self.num_blocks - 1
        _require(
            needed <= usable,
            f"max_tokens={max_tokens} needs {needed} GPU blocks {where}, the pool has {usable}: "
            f"give device_bytes >= {(needed + 1) * self.block_bytes}",
        )

    # What is wasted.

    @property
    def resident_waste(self) -> float:
        """Share of the resident groups' block bytes that no layer uses."""
        return 1 - self.spec.num_layers / (self.num_groups * self.layers_per_block)

    @property
    def indexer_waste(self) -> float:
        """Share of the indexer groups' block bytes that no index key uses."""
        return 1 - len(self.units) * self.index_page_bytes / (self.num_indexer_groups * self.block_bytes)


def _units(spec: ModelSpec) -> tuple[Unit, ...]:
    ends = (*spec.leaders[1:], spec.num_layers)
    return tuple(Unit(leader, tuple(range(leader, end))) for leader, end in zip(spec.leaders, ends, strict=True))


@dataclass(frozen=True)
class _Packing:
    layers_per_block: int
    groups: tuple[tuple[int, ...], ...]
    indexer_groups: tuple[tuple[int, ...], ...]

    @property
    def layers_per_page(self) -> int:
        """What a page of a request takes from the pool, counted in pages of one layer."""
        return self.layers_per_block * (len(self.groups) + len(self.indexer_groups))


def _packing(spec: ModelSpec, units: tuple[Unit, ...], layers_per_block: int) -> _Packing:
    leaders_per_block = layers_per_block * spec.row_bytes // spec.index_row_bytes
    return _Packing(
        layers_per_block,
        pack([len(unit.layers) for unit in units], layers_per_block),
        pack([1] * len(units), leaders_per_block),
    )


def _best_packing(spec: ModelSpec, units: tuple[Unit, ...]) -> _Packing:
    """The smallest block among those that waste least, over all sizes a block may have."""
    fits_unit = max(len(unit.layers) for unit in units)
    fits_index_row = _ceil_div(spec.index_row_bytes, spec.row_bytes)
    smallest = max(fits_unit, fits_index_row)
    candidates: Iterable[int] = range(smallest, max(smallest, spec.num_layers) + 1)
    return min(
        (_packing(spec, units, layers) for layers in candidates),
        key=lambda packing: (packing.layers_per_page, packing.layers_per_block),
    )


def plan_layout(spec: ModelSpec, device_bytes: int, host_bytes: int) -> Layout:
    """Plans the pools of a model within two budgets. `host_bytes=0` means no host tier.

    A page of a request takes one block of every group and of every indexer group. The block size
    (`layers_per_block`) decides how many there are: small blocks leave units that do not pair up,
    large ones leave room behind the last unit and behind the index keys. All sizes are tried, and the
    one taken is that whose groups and indexer groups together take the fewest bytes per page, the
    smaller one in a tie. It is never worse than first-fit in blocks that just hold the largest unit.

    Raises `LayoutError` naming the budget that is too small (each pool needs its null block and at
    least one other) or too large (row numbers of a tensor stay below 2^31).
    """
    units = _units(spec)
    packing = _best_packing(spec, units)
    layout = Layout(
        spec=spec,
        units=units,
        groups=tuple(
            Group(numbers, tuple(layer for unit in numbers for layer in units[unit].layers))
            for numbers in packing.groups
        ),
        indexer_groups=packing.indexer_groups,
        layers_per_block=packing.layers_per_block,
        num_blocks=device_bytes // (packing.layers_per_block * spec.block_size * spec.row_bytes),
        host_blocks=host_bytes // (spec.num_layers * spec.block_size * spec.row_bytes),
    )
    _require(
        layout.num_blocks >= 2,
        f"device_bytes={device_bytes} must hold the null block and one more: {2 * layout.block_bytes} at least",
    )
    _require(
        host_bytes == 0 or layout.host_blocks >= 2,
        f"host_bytes={host_bytes} must be 0 or hold the null block and one more: "
        f"{2 * layout.host_block_bytes} at least",
    )
    _require(
        layout.num_blocks * layout.block_stride < MAX_ROWS,
        f"device_bytes={device_bytes} gives {layout.num_blocks * layout.block_stride} rows, "
        f"row numbers must stay below {MAX_ROWS}",
    )
    _require(
        layout.host_blocks * layout.block_size < MAX_ROWS,
        f"host_bytes={host_bytes} gives {layout.host_blocks * layout.block_size} rows per tensor, "
        f"row numbers must stay below {MAX_ROWS}",
    )
    return layout
