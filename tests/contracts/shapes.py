"""Pools of any size, as control and the planner see them."""

from dataclasses import dataclass

from hisparse_ops.control.admission import AdmissionLedger
from hisparse_ops.control.config import CoordinatorConfig
from hisparse_ops.memory.layout import Group, Layout, ModelSpec, Unit

CONFIG = CoordinatorConfig(max_requests=8, max_pages=1 << 20)


@dataclass
class Shape:
    """What control must know of a layout; satisfies `PoolShape`."""

    block_size: int = 64
    num_groups: int = 1
    num_indexer_groups: int = 1
    hot_blocks: int = 1
    num_blocks: int = 2
    host_blocks: int = 2


def ledger(**sizes: int) -> AdmissionLedger:
    return AdmissionLedger(Shape(**sizes), CONFIG)


def layout(groups: int, hot_slots: int, block_size: int) -> Layout:
    """A model of one-layer units, each a group of its own; one indexer group."""
    spec = ModelSpec(groups, tuple(range(groups)), 4, 4, block_size, top_k=1, hot_slots=hot_slots)
    units = tuple(Unit(layer, (layer,)) for layer in range(groups))
    alone = tuple(Group((unit,), (unit,)) for unit in range(groups))
    return Layout(spec, units, alone, (tuple(range(groups)),), layers_per_block=1, num_blocks=2, host_blocks=2)
