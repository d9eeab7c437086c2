"""Asks crosshair about contracts, and says what its answer is worth.

A contract is a function: its first asserts say for which arguments, the later ones what must hold. Work is
counted, not timed: how fast the machine is, and what else it does, decides nothing.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from crosshair import statespace
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet
from crosshair.statespace import MessageType

PROVEN, SEARCHED, BROKEN = "proven", "searched", "BROKEN"
SOLVER_WORK = 3_000_000  # z3's own units, for one question; ten times what the hardest takes
ALL = 0  # crosshair's word for not stopping at paths that teach it nothing
Contract = Callable[..., None]


class Verdict(NamedTuple):
    contract: str
    word: str
    seconds: float
    message: str


def contracts_of(module: ModuleType) -> Iterator[Contract]:
    """The functions whose arguments crosshair may choose: those that answer with nothing."""
    for _, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and inspect.signature(function).return_annotation in (None, "None"):
            yield function


def check(contract: Contract, paths: int) -> Verdict:
    """`proven`: every path through contract and code was taken, for all arguments. `searched`: no
    counterexample on `paths` paths, or the solver gave up. Anything else is `BROKEN`. A premise that nothing
    fulfils is not noticed here: crosshair calls it proven. `mistakes` would notice."""
    statespace.CROSSHAIR_SMT_RLIMIT = SOLVER_WORK  # else read from the environment
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.asserts],
        report_all=True,
        max_iterations=paths,
        max_uninteresting_iterations=ALL,
        per_condition_timeout=math.inf,
        per_path_timeout=math.inf,
    )
    start = time.process_time()
    messages = run_checkables(analyze_function(contract, options))
    words = {MessageType.CONFIRMED: PROVEN, MessageType.CANNOT_CONFIRM: SEARCHED}
    found = {words.get(message.state, BROKEN) for message in messages} or {BROKEN}
    word = next(word for word in (BROKEN, SEARCHED, PROVEN) if word in found)
    told = "; ".join(message.message for message in messages) or "crosshair sees no contract"
    return Verdict(f"{contract.__module__}.{contract.__name__}", word, time.process_time() - start, told)
