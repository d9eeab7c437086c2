"""How the protocol orders the streams of a worker: steps in flight together, one question at a time.

| stream  | work                                                                            |
|---------|---------------------------------------------------------------------------------|
| compute | tables, hot slots, the model with its gathers, the row mirror                   |
| copy    | whole pages: copy-on-write, restores, spills                                    |
| dma     | a transport that writes host rows for an import; it waits for nobody but the CPU |

In each case every wait, every event and everything that the CPU waits to see is needed.
"""

from __future__ import annotations

from .streams import Item, Program, Record, Seen, Wait, find_race, op, orders


def _decode(step: int, block: int, context: list[str], host: int) -> list[Item]:
    """One token: its rows go to GPU block `block`, and are mirrored to host block `host`."""
    own = f"gpu {block}"
    return [
        op("compute", f"resolve and gather {step}", reads=["tables", "host 4"], writes=["slots", "gpu 4"]),
        op("compute", f"new rows {step}", reads=["tables"], writes=[own]),
        op("compute", f"attention {step}", reads=[own, "gpu 4", *context]),
        op("compute", f"mirror {step}", reads=[own], writes=[f"host {host}"]),
    ]


def restores() -> Program:
    """Step 2 restores a page into a block that was unpinned, and that the attention of step 1 still reads.
    The model of step 2 reads the page."""
    return [
        op("compute", "tables 1", writes=["tables"]),
        *_decode(1, 1, ["gpu 2"], host=1),
        op("compute", "tables 2", writes=["tables"]),
        Record("compute", "begun 2"),
        Wait("copy", "begun 2"),
        op("copy", "copy-on-write 2", reads=["host 6"], writes=["host 7"]),
        op("copy", "restore 2", reads=["host 5"], writes=["gpu 2"]),
        Record("copy", "restored 2"),
        Wait("compute", "restored 2"),
        *_decode(2, 1, ["gpu 2"], host=1),
    ]


def spills() -> Program:
    """Step 1 spills the page that it has filled. Step 2 puts new rows of another request into its blocks:
    they were given back when the spill was enqueued. Once the spill is seen completed, the page is read
    from the host."""
    return [
        *_decode(1, 1, [], host=1),
        Record("compute", "written 1"),
        Wait("copy", "written 1"),
        op("copy", "spill 1", reads=["gpu 1"], writes=["host 2"]),
        Record("copy", "spilled 1"),
        Wait("compute", "spilled 1"),
        op("compute", "tables 2", writes=["tables"]),
        *_decode(2, 1, [], host=3),
        Record("compute", "written 2"),
        Wait("copy", "written 2"),
        op("copy", "spill 2", reads=["gpu 1"], writes=["host 3"]),
        Record("copy", "spilled 2"),
        Seen("spilled 2"),
        op("compute", "gather 3", reads=["host 3"], writes=["gpu 4"]),
    ]


def imports() -> Program:
    """A transport brings rows into host blocks that step 1 read and spilled to, and that rested behind the
    fence until then. Step 2 reads what it brought."""
    return [
        *_decode(1, 1, [], host=1),
        Record("compute", "written 1"),
        op("copy", "spill of a page written long ago", reads=["gpu 3"], writes=["host 3"]),
        Record("copy", "spilled 1"),
        Seen("written 1"),
        Seen("spilled 1"),
        op("dma", "import", writes=["host 4", "host 3"]),
        Record("dma", "imported"),
        Seen("imported"),
        *_decode(2, 1, [], host=1),
    ]


CASES = {"restores": restores, "spills": spills, "imports": imports}


def check_streams() -> int:
    """Print for each case what goes wrong without each wait; 1 if the case itself races, or a wait is idle."""
    wrong = 0
    for name, case in CASES.items():
        race = find_race(case())
        print(f"{name}: {race or 'no race, whatever the pace of the streams'}")
        wrong |= race is not None
        for item, rest in orders(case()):
            if isinstance(item, Record):
                continue
            race = find_race(rest)
            waiter = item.stream if isinstance(item, Wait) else "the CPU"
            print(f"{name}: without {waiter} waiting for {item.event!r}: {race or 'nobody misses it'}")
            wrong |= race is None
    return int(wrong)
