"""The explorer: what it claims to have visited, and that it sees what is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from protocol.choices import every_action
from protocol.cli import main
from protocol.explore import Explorer, Saver, TooLarge, missing
from protocol.families import ALWAYS, FAMILIES, LARGER, Family
from protocol.fingerprint import fingerprint
from protocol.world import World

from hisparse_ops.control.publication import Publisher
from hisparse_ops.control.transfers import TransferLedger
from spec.model import kinds

MERGED = 100  # worlds that were taken for one that is known, and are looked at all the same
NOT_IN_SMALL_WORLDS = {"grow"}  # one action of the model for three that are done


def small(name: str, **bounds: int) -> Family:
    family = FAMILIES[name]
    return replace(family, setup=replace(family.setup, bounds=replace(family.setup.bounds, **bounds)))


SMALLEST = small("core", requests=1, pages=1, gpu=3, host=2)


def test_a_small_world_is_explored_to_its_end():
    found = Explorer("core", SMALLEST).run()
    assert not found.wrong, found.wrong
    assert (found.states, found.transitions, found.depth) == (70, 374, 17)
    assert not missing(replace(SMALLEST, kinds=("reset",)), found)


@pytest.mark.parametrize(("name", "family"), [*FAMILIES.items(), *LARGER.items()])
def test_every_family_begins_well(name, family):
    with pytest.raises(TooLarge):
        Explorer(name, family, max_states=120).run()


def test_a_family_may_begin_in_the_middle_and_its_stories_at_the_beginning():
    family = LARGER["together"]
    explorer = Explorer("together", replace(family, depth=3))
    found = explorer.run()
    assert not found.wrong, found.wrong
    assert found.kinds["land"] and found.kinds["unpin"] and found.kinds["cow"]
    for key in islice(explorer.origin, 20):
        world = World(family.setup)
        for action in explorer.story(key):
            world.act(action)
        assert fingerprint(world) == key


def test_every_kind_of_the_model_is_some_family_s():
    covered = set(ALWAYS).union(*[family.kinds for family in FAMILIES.values()])
    assert covered == kinds() - NOT_IN_SMALL_WORLDS
    assert set(LARGER) == {*FAMILIES, "together"}


@pytest.mark.parametrize("name", FAMILIES)
def test_worlds_with_equal_fingerprints_go_on_alike(name):
    """States that are reached a second time, from both worlds: the same actions lead to the same states."""
    family = FAMILIES[name]
    saver = Saver(World(family.setup))
    futures: dict[bytes, list[bytes]] = {}
    merged, layer = 0, [saver.save(World(family.setup))]
    while merged < MERGED:
        below = []
        for saved in layer:
            here = saver.load(saved)
            key, after = fingerprint(here), []
            known = key in futures
            for action in every_action(here):
                if action[0] in family.actions:
                    world = saver.load(saved)
                    world.act(action)
                    after.append(fingerprint(world))
                    below += [] if known else [saver.save(world)]
            assert futures.setdefault(key, sorted(after)) == sorted(after)
            merged += known
        layer = below
    assert len(futures) > 1


def test_a_family_that_never_does_what_it_is_for_has_failed():
    found = Explorer("core", SMALLEST).run()
    assert missing(replace(SMALLEST, kinds=("cow",)), found) == ["cow"]


def test_a_page_published_too_early_is_found_by_a_shortest_story(monkeypatch):
    def enqueued_is_enough(self, transfer):
        self._settle([transfer])

    monkeypatch.setattr(Publisher, "_enqueued", enqueued_is_enough)
    found = Explorer("core", SMALLEST).run()
    assert "completed" not in {action[2] for action in found.story if action[0] == "hear"}
    assert found.story[-1][:3] == ("hear", 0, "enqueued") and found.wrong


def test_a_late_report_that_changes_something_is_found(monkeypatch):
    def retired_again(self, ids):
        return [t for number, t in self.active.items() if t.sent_at >= 0]

    monkeypatch.setattr(TransferLedger, "_reported", retired_again)
    assert Explorer("core", SMALLEST).run().wrong


def test_bounds_are_flags_and_an_unknown_family_is_named(capsys):
    assert main(["explore", "nothing"]) == 2
    assert "no family 'nothing': expected one of core" in capsys.readouterr().err
    sizes = ["--requests", "1", "--pages", "1", "--gpu", "3", "--host", "2", "--jobs", "1"]
    assert main(["explore", "core", *sizes]) == 1
    out, err = capsys.readouterr()
    assert "core" in out and "never done: " in err
    assert main(["explore", "core", *sizes, "--max-states", "5"]) == 1
    assert "too large: more than 5 states" in capsys.readouterr().err


def test_a_walk_for_volume_repeats_and_tells_its_seeds(capsys):
    outputs = []
    for _ in range(2):
        assert main(["walk", "--actions", "600", "--seed", "5", "--jobs", "1"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and "seeds 5 to 5" in outputs[0]


def test_actions_are_enumerated_without_repetition():
    world = World(FAMILIES["core"].setup)
    actions = list(islice(every_action(world), 1000))
    assert len(actions) == len(set(actions)) < 1000
