"""Pictures of the GPU figures: latency and bandwidth against batch, with the floor drawn in.

    pip install -c constraints.txt matplotlib
    python bench/draw.py bench/results/h200.json

writes latency.png and bandwidth.png beside the records, which `bench/bench_gpu.py` writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

Record = dict[str, Any]

USUAL = {"top_k": 2048, "hot_slots": 4096, "query_rows": 1}
# What is drawn in each panel: title, op, and which records of it.
PANELS: list[tuple[str, str, Callable[[Record], bool]]] = [
    ("resolve", "resolve", lambda r: True),
    ("index group: resolve and the rows of 4 layers", "group_step", lambda r: r["host_gib"] > 1),
    ("gather: the rows of 4 layers", "gather", lambda r: r["host_gib"] > 1),
]
CASES = {"resident": "all resident", "hit100": "all hot", "miss5": "5 % misses", "miss50": "50 %", "cold": "cold"}


def lines(records: Iterable[Record], op: str, keep: Callable[[Record], bool]) -> dict[str, list[Record]]:
    """The records of one panel by case, each in order of batch."""
    chosen = [r for r in records if r["op"] == op and keep(r) and all(r[k] == v for k, v in USUAL.items())]
    by_case = {case: [r for r in chosen if r["case"] == case] for case in CASES}
    return {case: sorted(of_case, key=lambda r: r["batch"]) for case, of_case in by_case.items() if len(of_case) > 1}


def draw(
    records: list[Record], value: str, floor: Callable[[Record], float], unit: str, scale: str, path: Path
) -> None:
    """One panel for each op: `value` of the records as lines, `floor` of them dashed."""
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(5 * len(PANELS), 4.5), layout="constrained")
    for panel, (title, op, keep) in zip(panels, PANELS, strict=True):
        for case, of_case in lines(records, op, keep).items():
            batches = [r["batch"] for r in of_case]
            (line,) = panel.plot(batches, [r[value] for r in of_case], marker="o", label=CASES[case])
            panel.plot(batches, [floor(r) for r in of_case], linestyle="--", color=line.get_color(), alpha=0.6)
        panel.set(title=title, xlabel="requests", ylabel=unit, xscale="log", yscale=scale)
        panel.set_xticks([1, 8, 64, 128, 256], labels=["1", "8", "64", "128", "256"])
        panel.minorticks_off()
        panel.legend(title="dashed: floor", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="JSON file of bench_gpu.py")
    path = parser.parse_args().records
    records = json.loads(path.read_text())
    draw(records, "us", lambda r: r["floor_us"], "microseconds", "log", path.with_name("latency.png"))
    # The same bytes in the floor's time.
    draw(
        records,
        "gb_per_s",
        lambda r: r["gb_per_s"] * r["us"] / r["floor_us"],
        "GB/s",
        "linear",
        path.with_name("bandwidth.png"),
    )


if __name__ == "__main__":
    main()
