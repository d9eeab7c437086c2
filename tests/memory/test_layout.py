"""The planner: the published worked cases, its arithmetic, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_ops.memory.layout import Layout, LayoutError, ModelSpec, plan_layout
from hisparse_ops.memory.packing import first_fit, pack

MIB = 2**20
GIB = 2**30


def glm(**changes: int) -> ModelSpec:
    shape = {"num_layers": 60, "row_bytes": 656, "index_row_bytes": 132} | changes
    return ModelSpec(leaders=tuple(range(0, 60, 4)), **shape)


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    num_layers = draw(st.integers(1, 40))
    others = draw(st.sets(st.integers(1, 40), max_size=12))
    return ModelSpec(
        num_layers=num_layers,
        leaders=(0, *sorted(layer for layer in others if layer < num_layers)),
        row_bytes=4 * draw(st.integers(1, 300)),
        index_row_bytes=draw(st.integers(1, 400)),
        block_size=draw(st.sampled_from([1, 3, 16, 64])),
        top_k=draw(st.integers(1, 64)),
        max_query_len=draw(st.integers(1, 4)),
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    return plan_layout(draw(specs()), draw(st.integers(64 * MIB, GIB)), draw(st.integers(64 * MIB, GIB)))


def test_glm_worked_case() -> None:
    layout = plan_layout(glm(), device_bytes=100 * GIB, host_bytes=200 * GIB)
    assert layout.page_bytes == 41_984
    assert layout.num_groups == 15
    assert layout.layers_per_block == 4
    assert layout.block_bytes == 167_936
    assert layout.block_stride == 256
    assert layout.num_indexer_groups == 1
    assert layout.host_block_bytes == 2_519_040
    assert layout.hot_region_bytes == 153.75 * MIB
    assert round(100 * layout.indexer_waste, 1) == 24.5
    assert layout.resident_waste == 0
    assert layout.num_blocks == 100 * GIB // 167_936
    assert layout.host_blocks == 200 * GIB // 2_519_040


def test_glm_hot_region_with_three_draft_tokens() -> None:
    layout = plan_layout(glm(max_query_len=4), device_bytes=100 * GIB, host_bytes=0)
    assert layout.hot_blocks == 160
    assert round(layout.hot_region_bytes / MIB, 1) == 384.4


def test_smollm2_worked_case() -> None:
    leaders = (0, 1, 2, 6, 10, 14, 18, 22, 26)
    layout = plan_layout(ModelSpec(30, leaders, row_bytes=1536, index_row_bytes=256), GIB, GIB)
    assert [len(unit.layers) for unit in layout.units] == [1, 1, 4, 4, 4, 4, 4, 4, 4]
    assert layout.layers_per_block == 4
    assert layout.groups[0].units == (0, 1)
    assert [group.units for group in layout.groups[1:]] == [(unit,) for unit in range(2, 9)]
    assert layout.num_indexer_groups == 1


def test_a_block_of_two_units_where_that_leaves_less_behind_the_index_keys() -> None:
    """61 leaders without followers: 61 groups and 16 indexer groups, or 31 and 7 of twice the size."""
    layout = plan_layout(ModelSpec(61, tuple(range(61)), row_bytes=656, index_row_bytes=132), GIB, 0)
    assert (layout.layers_per_block, layout.num_groups, layout.num_indexer_groups) == (2, 31, 7)


@given(layouts())
def test_every_layer_has_its_own_place(layout: Layout) -> None:
    layers = range(layout.spec.num_layers)
    places = [(layout.group_of(layer), layout.slot_of(layer)) for layer in layers]
    assert len(set(places)) == layout.spec.num_layers
    assert all(slot < layout.layers_per_block for _, slot in places)
    for layer, (group, slot) in enumerate(places):
        assert layout.groups[group].layers[slot] == layer
        assert layout.unit_of(layer) in layout.groups[group].units
        assert layer in layout.units[layout.unit_of(layer)].layers


@given(layouts())
def test_every_leader_has_its_own_index_page_inside_the_block(layout: Layout) -> None:
    places = [(layout.index_group_of(leader), layout.index_slot_of(leader)) for leader in layout.spec.leaders]
    assert len(set(places)) == len(layout.spec.leaders)
    assert all((slot + 1) * layout.index_page_bytes <= layout.block_bytes for _, slot in places)


@given(specs())
def test_never_worse_than_first_fit(spec: ModelSpec) -> None:
    layout = plan_layout(spec, GIB, 0)
    sizes = [len(unit.layers) for unit in layout.units]
    for capacity in range(max(sizes), spec.num_layers + 1):
        leaders = capacity * spec.row_bytes // spec.index_row_bytes
        if leaders:
            bins = len(first_fit(sizes, capacity)) + len(first_fit([1] * len(sizes), leaders))
            assert layout.bytes_per_token <= bins * capacity * spec.row_bytes


@given(st.lists(st.integers(1, 9), max_size=12))
def test_packing_is_a_partition_in_few_bins(sizes: list[int]) -> None:
    bins = pack(sizes, 9)
    assert sorted(piece for pieces in bins for piece in pieces) == list(range(len(sizes)))
    assert all(sum(sizes[piece] for piece in pieces) <= 9 for pieces in bins)
    assert len(bins) <= len(first_fit(sizes, 9))


def test_the_given_order_wins_where_largest_first_leaves_gaps() -> None:
    """2+2+3 twice; largest first pairs 3+3, and what is left no longer fits into one bin."""
    sizes = [2, 2, 3, 2, 2, 3]
    largest_first = sorted(range(len(sizes)), key=lambda piece: -sizes[piece])
    assert len(first_fit(sizes, 7, largest_first)) == 3
    assert len(pack(sizes, 7)) == 2


@given(layouts(), st.integers(1, 10_000), st.integers(1, 512))
def test_costs_of_a_request(layout: Layout, tokens: int, step_tokens: int) -> None:
    pages = -(-tokens // layout.block_size)
    assert layout.pages(tokens) == pages
    assert layout.request_bytes(tokens) == layout.request_blocks(tokens) * layout.block_bytes
    assert layout.request_bytes(pages * layout.block_size) == layout.bytes_per_token * pages * layout.block_size
    assert layout.reserve_blocks(tokens, step_tokens) <= layout.request_blocks(tokens)


def test_reserve_does_not_count_the_history() -> None:
    layout = plan_layout(glm(), 100 * GIB, 200 * GIB)
    short, long = (layout.reserve_blocks(tokens, max_step_tokens=512) for tokens in (50_048, 100_096))
    assert long - short == (100_096 - 50_048) // 64 * layout.num_indexer_groups
    assert layout.request_blocks(1) == layout.reserve_blocks(1, 512) == 16


@given(specs(), st.integers(0, 64 * MIB), st.integers(0, 64 * MIB))
def test_pools_stay_within_their_budgets(spec: ModelSpec, device_bytes: int, host_bytes: int) -> None:
    try:
        layout = plan_layout(spec, device_bytes, host_bytes)
    except LayoutError:
        return
    assert layout.device_bytes <= device_bytes < layout.device_bytes + layout.block_bytes
    assert layout.host_bytes <= host_bytes < layout.host_bytes + layout.host_block_bytes


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"row_bytes": 0}, "row_bytes"),
        ({"row_bytes": 658}, "row_bytes must be a multiple of 4"),
        ({"index_row_bytes": 0}, "index_row_bytes"),
        ({"block_size": 0}, "block_size"),
        ({"top_k": 0}, "top_k"),
        ({"max_query_len": 0}, "max_query_len"),
        ({"hot_slots": 2047}, "hot_slots must be at least max_query_len \\* top_k = 2048"),
        ({"hot_slots": 4096, "max_query_len": 3}, "hot_slots"),
        ({"hot_slots": 2**31}, "hot_slots, .*, must stay below 2147483648"),
        ({"top_k": 2**30}, r"hot_slots, by default \(max_query_len \+ 1\) \* top_k, must stay below 2147483648"),
        ({"num_layers": 56}, "leaders must be layers below num_layers=56"),
    ],
)
def test_a_bad_spec_is_refused_by_name(changes: dict[str, int], named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        glm(**changes)


@pytest.mark.parametrize("leaders", [(), (1, 2), (0, 4, 2), (0, 4, 4), (-4, 0)])
def test_bad_leaders_are_refused_by_name(leaders: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match="leaders"):
        ModelSpec(8, leaders, row_bytes=64, index_row_bytes=16)


@pytest.mark.parametrize(
    ("device_bytes", "host_bytes", "named"),
    [
        (0, 0, "device_bytes"),
        (2 * 167_936 - 1, 0, "device_bytes"),
        (GIB, 2 * 2_519_040 - 1, "host_bytes"),
        (2**31 * 656, 0, "device_bytes.*row numbers"),
        (GIB, 2**31 * 60 * 656, "host_bytes.*row numbers"),
    ],
)
def test_a_bad_budget_is_refused_by_name(device_bytes: int, host_bytes: int, named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        plan_layout(glm(), device_bytes, host_bytes)


def test_the_smallest_budgets_are_accepted() -> None:
    layout = plan_layout(glm(), 2 * 167_936, 2 * 2_519_040)
    assert (layout.num_blocks, layout.host_blocks) == (2, 2)


def test_a_lone_request_that_cannot_fit_is_refused_with_the_budget_it_needs() -> None:
    layout = plan_layout(glm(), device_bytes=GIB, host_bytes=GIB)
    with pytest.raises(LayoutError, match="max_tokens=100000 needs 1563 host blocks"):
        layout.check_request(100_000, max_step_tokens=512)
    roomy_host = plan_layout(glm(), device_bytes=GIB // 8, host_bytes=8 * GIB)
    with pytest.raises(LayoutError, match="max_tokens=100000 needs 2688 GPU blocks") as refusal:
        roomy_host.check_request(100_000, max_step_tokens=512)
    needed = int(str(refusal.value).rsplit(" ", 1)[1])
    plan_layout(glm(), needed, 8 * GIB).check_request(100_000, max_step_tokens=512)
    with pytest.raises(LayoutError):
        plan_layout(glm(), needed - 1, 8 * GIB).check_request(100_000, max_step_tokens=512)


def test_without_a_host_tier_a_request_must_fit_whole() -> None:
    layout = plan_layout(glm(), device_bytes=17 * 167_936, host_bytes=0)
    layout.check_request(64, max_step_tokens=64)
    with pytest.raises(LayoutError, match="max_tokens=65 needs 32 GPU blocks fully resident"):
        layout.check_request(65, max_step_tokens=64)


@pytest.mark.parametrize("layer", [-1, 60])
def test_a_layer_outside_the_model_never_wraps(layer: int) -> None:
    layout = plan_layout(glm(), GIB, 0)
    for lookup in (layout.unit_of, layout.group_of, layout.slot_of):
        with pytest.raises(LayoutError, match="layer"):
            lookup(layer)


@pytest.mark.parametrize("leader", [-4, 1, 60])
def test_only_leaders_have_index_keys(leader: int) -> None:
    layout = plan_layout(glm(), GIB, 0)
    for lookup in (layout.index_group_of, layout.index_slot_of):
        with pytest.raises(LayoutError, match="leader"):
            lookup(leader)


def test_planning_needs_no_torch() -> None:
    """The module is loaded by path: importing the package would load the ops, and torch with them."""
    code = """
import importlib.abc, pathlib, sys
from importlib.machinery import ModuleSpec, PathFinder
sys.modules["torch"] = None
package = type(sys)("hisparse_ops")
package.__path__ = [sys.argv[1]]
sys.modules["hisparse_ops"] = package
import hisparse_ops.memory.layout, hisparse_ops.memory.ranges
"""
    import hisparse_ops.memory.layout as layout

    package = layout.__file__.removesuffix("/memory/layout.py")
    subprocess.run([sys.executable, "-c", code, package], check=True)
