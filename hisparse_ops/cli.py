"""The `hisparse` command. Exit codes: 0 all is well, 1 HiSparse and full residency differ, 2 bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from hisparse_ops.engine.replay import Outcome
    from hisparse_ops.integrations.transformers import TransformersModel

EXIT_DIFFERENT = 1
EXIT_BAD_INPUT = 2

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_MIB = 1 << 20
_TRACE_CORPUS_TOKENS = 15_000  # the longest help topic: windows of it stand for a trace's hash ids

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def main() -> None:
    """HiSparse: KV caches of sparse-attention models in host memory, with only what is needed on the GPU."""


class ModelName(StrEnum):
    SMOLLM2 = "smollm2"
    GLM_TINY = "glm-tiny"


class DtypeName(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def _size(text: str | int) -> int:
    """`96MiB`, `1.5 GB`, `4096`: a number of bytes."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or match[2].lower() not in _UNITS:
        raise typer.BadParameter(f"{text!r} is not a size: expected a number with B, KiB, MiB, GiB, KB, MB or GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Bad input, missing packages and memory that is not there end in one sentence, not in a traceback."""
    try:
        yield
    except (ValueError, OSError, MemoryError, ImportError) as error:
        Console(stderr=True).print(f"hisparse: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None


@app.command()
def replay(
    model: Annotated[ModelName, typer.Option(help="Model to decode with.")] = ModelName.SMOLLM2,
    requests: Annotated[int, typer.Option(min=1, help="Requests to decode.")] = 8,
    context: Annotated[int, typer.Option(min=1, help="Prompt tokens of each request.")] = 2560,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode for each request.")] = 24,
    device_pool: Annotated[
        int | None,
        typer.Option(
            parser=_size, metavar="SIZE", help="Small device pool.", show_default="a quarter of full residency"
        ),
    ] = None,
    host_pool: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Host pool.", show_default="room for every request")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Rows each token attends to.", show_default="the model's")
    ] = None,
    hot_slots: Annotated[
        int | None, typer.Option(min=1, help="Rows of a request's hot buffer.", show_default="2 x top-k")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Rows in a block.")] = 64,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed at once.")] = 128,
    dtype: Annotated[DtypeName, typer.Option(help="Type of weights and KV rows.")] = DtypeName.FLOAT32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random weights and of the choice of prompts.")] = 0,
    trace: Annotated[
        Path | None, typer.Option(help="Take lengths and shared prefixes from a Mooncake trace, scaled to --context.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Decode the same requests fully resident, fully resident in a small pool, and with HiSparse in that pool.

    Ends with a table and with whether tokens and logits of HiSparse are bit-identical to full residency.
    """
    with _plain_errors():
        if json_file is not None and not json_file.parent.is_dir():
            raise ValueError(f"--json: folder {json_file.parent} does not exist")
        # Here, not above: `hisparse --help` needs neither torch nor a model.
        import torch

        from hisparse_ops.engine import replay as engine_replay
        from hisparse_ops.integrations.transformers import load

        runner = load(
            model.value,
            dtype=getattr(torch, dtype.value),
            seed=seed,
            top_k=top_k,
            block_size=block_size,
            hot_slots=hot_slots,
        )
        job = engine_replay.plan_job(
            runner,
            _prompts(runner, requests, context, seed, trace),
            new_tokens,
            prefill_chunk=prefill_chunk,
            device_bytes=device_pool,
            host_bytes=host_pool,
        )
        settings = {
            "model": model.value,
            "dtype": dtype.value,
            "requests": requests,
            "context": context,
            "new_tokens": new_tokens,
            "top_k": runner.spec.top_k,
            "hot_slots": runner.spec.slots,
            "block_size": block_size,
            "prefill_chunk": prefill_chunk,
            "seed": seed,
            "trace": None if trace is None else str(trace),
            "full_residency_bytes": job.full_residency_bytes,
            "device_pool_bytes": job.device_bytes,
            "host_pool_bytes": job.host_bytes,
        }
        with _progress_bars() as progress:
            outcome = engine_replay.replay(runner, job, progress)
        if json_file is not None:
            json_file.write_text(json.dumps({"settings": settings, **asdict(outcome)}, indent=2) + "\n")
    _show(outcome, settings)
    if not outcome.identical:
        raise typer.Exit(EXIT_DIFFERENT)


def _prompts(
    runner: TransformersModel, requests: int, context: int, seed: int, trace: Path | None
) -> list[Sequence[int]]:
    """Real text (random tokens for a model without a tokenizer), in one piece each or cut as a trace says."""
    from hisparse_ops.engine.trace import read_trace, scaled_prompts
    from hisparse_ops.integrations.transformers import sample_prompts

    if trace is None:
        return [tokens for _, tokens in sample_prompts(runner, requests, context, seed=seed)]
    records = read_trace(trace, requests)
    [(_, corpus)] = sample_prompts(runner, 1, _TRACE_CORPUS_TOKENS, seed=seed)
    return list(scaled_prompts(records, corpus, context))


@contextmanager
def _progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """One bar per arm, on standard error."""
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(arm: str, done: int, total: int) -> None:
            if arm not in tasks:
                tasks[arm] = bars.add_task(arm, total=total)
            bars.update(tasks[arm], completed=done)

        yield update


def _show(outcome: Outcome, settings: dict[str, Any]) -> None:
    """The table: a line for each figure, a column for each arm; then the verdict."""
    console = Console()
    share = settings["device_pool_bytes"] / settings["full_residency_bytes"]
    table = Table(
        title=f"{settings['model']}, {settings['requests']} requests of {settings['context']} tokens, "
        f"device pool {settings['device_pool_bytes'] / _MIB:.0f} MiB = {share:.0%} of full residency"
    )
    table.add_column("")
    for arm in outcome.figures:
        table.add_column(arm, justify="right")
    for name, label, show in _LINES:
        table.add_row(label, *(show(getattr(figures, name)) for figures in outcome.figures.values()))
    console.print(table)
    for arm, why in outcome.unfit.items():
        console.print(f"{arm}: cannot run these requests: {why}")
    for what, same in (("tokens", outcome.tokens_identical), ("logits", outcome.logits_identical)):
        verdict = "bit-identical to" if same else "DIFFERENT from"
        console.print(f"{what} of hisparse are {verdict} full residency")


def _count(value: float) -> str:
    return f"{value:,}"


def _mib(value: float) -> str:
    return f"{value / _MIB:,.1f} MiB"


def _rate(value: float) -> str:
    return f"{value:.1f}"


_LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("peak_requests", "peak concurrent requests", _count),
    ("preemptions", "preemptions", _count),
    ("steps", "steps", _count),
    ("computed_tokens", "token positions computed", _count),
    ("tokens_per_second", "new tokens / s", _rate),
    ("resident_references", "resident references", _count),
    ("hot_hits", "hot hits", _count),
    ("misses", "misses", _count),
    ("faults", "faults", _count),
    ("host_bytes_read", "host bytes read", _mib),
    ("spilled_pages", "spilled pages", _count),
    ("reused_tokens", "tokens reused from the prefix cache", _count),
    ("device_peak_bytes", "device peak", _mib),
    ("host_peak_bytes", "host peak", _mib),
)
