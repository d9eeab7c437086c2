"""Walks for volume: sparse judges still find what is wrong, and the story is short."""

from __future__ import annotations

import pytest
from protocol.play import SETUPS
from protocol.shrink import replay
from protocol.volume import episode, walk

from hisparse_ops.control.fence import Fence
from hisparse_ops.control.publication import Publisher

NAME = "mirrored"


def test_a_walk_is_its_episodes():
    done = walk(NAME, SETUPS[NAME], 7, 6000)
    assert done.story is None and (done.actions, done.episodes) == (6000, 2)
    assert done.counts == episode(SETUPS[NAME], 7, 4000).counts + episode(SETUPS[NAME], 8, 2000).counts


def published_when_enqueued(self, transfer):
    self._settle([transfer])


def never_given_back(self, block):
    pass


@pytest.mark.parametrize(
    "part, name, mistake",
    [(Publisher, "_enqueued", published_when_enqueued), (Fence, "release_host", never_given_back)],
    ids=["published when enqueued", "a host block is lost"],
)
def test_a_mistake_is_found_between_judges_and_told_from_its_beginning(monkeypatch, part, name, mistake):
    monkeypatch.setattr(part, name, mistake)
    done = walk(NAME, SETUPS[NAME], 3, 4000)
    assert done.story is not None and done.story.wrong and done.story.seed == 3
    assert len(done.story.actions) < done.actions
    assert replay(SETUPS[NAME], done.story.actions).wrong == done.story.wrong
