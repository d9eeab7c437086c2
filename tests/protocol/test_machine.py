"""Hypothesis plays: each rule draws from what the model enables in the world's present state."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from protocol.play import SETUPS, WEIGHTS, enabled
from protocol.world import Setup, World


class Protocol(RuleBasedStateMachine):
    """One fine rule, for any action that is enabled, beside coarse ones that reach deep situations."""

    setup: Setup

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.setup)

    def act(self, kinds: set[str], choices: random.Random) -> bool:
        options = [action for action in enabled(self.world, choices) if action[0] in kinds]
        if options:
            self.world.act(choices.choices(options, [WEIGHTS[action[0]] for action in options])[0])
        return bool(options)

    @initialize(choices=st.randoms(use_true_random=False))
    def begin(self, choices: random.Random) -> None:
        self.act({"admit"}, choices)

    @rule(choices=st.randoms(use_true_random=False))
    def anything(self, choices: random.Random) -> None:
        self.act(set(WEIGHTS), choices)

    @rule(choices=st.randoms(use_true_random=False), steps=st.integers(1, 10))
    def grow(self, choices: random.Random, steps: int) -> None:
        """Requests compute on, calmly: step, run, arrive, done, seal."""
        for _ in range(steps):
            self.act({"step"}, choices)
            for kinds in ({"run"}, {"arrive"}, {"takeback"}, {"step_done"}, {"seal"}):
                while kinds != {"seal"} and self.act(kinds, choices):
                    pass
                self.act({"seal"}, choices)

    @rule(choices=st.randoms(use_true_random=False))
    def hear(self, choices: random.Random) -> None:
        """Everything that is true is reported, in any order."""
        for _ in range(40):
            if not self.act({"deliver"}, choices):
                break

    @rule(choices=st.randoms(use_true_random=False))
    def crowd(self, choices: random.Random) -> None:
        """As many requests as are let in."""
        for _ in range(self.setup.live):
            self.act({"admit"}, choices)


@pytest.mark.parametrize("name", ["mirrored", "squeezed"])
def test_whatever_is_enabled_goes_right(name):
    machine = type(f"{name} protocol", (Protocol,), {"setup": SETUPS[name]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12, stateful_step_count=20, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
