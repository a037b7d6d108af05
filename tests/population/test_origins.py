"""Where members' weights came from since they were saved, and what would be lost."""

import pytest

from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.decisions import Continue, Mutate, Replace, Restart, Stop
from pbt_rl.population.origins import Drawn, Origins, Saved, Shrunk, Weights
from pbt_rl.population.population import Population

VALUES = {"learning_rate": 0.5}


class Run:
    """Four members that train; decisions reach the origins, then the population."""

    def __init__(self, remembered=()):
        self.population = Population([{"learning_rate": 0.1}] * 4, 10, 1)
        self.train(1000)
        self.origins = Origins(self.population, remembered)

    def train(self, *frames):
        """Add frames to all members, or to each its own."""
        for member in self.population.members:
            member.frames += frames[member.id if len(frames) > 1 else 0]

    def decide(self, *decisions, remembered=()):
        made = changes(decisions, self.population.generations)
        self.origins.follow(made, frozenset(remembered))
        for change in made:
            self.population.members[change.member].apply(change)

    def all(self):
        return [self.origins.of(m) for m in range(4)]


@pytest.fixture
def run():
    return Run()


def replace(member, donor, copy="both", of=None):
    return Replace(member, donor, copy, VALUES, "", of)


def test_without_changes_every_member_is_its_saved_self(run):
    run.train(10, 20, 30, 40)
    assert run.all() == [Weights(Saved(m), 10 * (m + 1)) for m in range(4)]


def test_a_copy_has_its_donors_origin_and_the_training_of_both(run):
    run.train(10, 20, 30, 40)
    run.decide(replace(0, 3), replace(1, 2, "hypers"), Mutate(2, VALUES, ""), Stop(3, ""))
    run.train(1, 2, 3, 0)
    assert run.all() == [
        Weights(Saved(3), 41),
        Weights(Saved(1), 22),
        Weights(Saved(2), 33),
        Weights(Saved(3), 40),
    ]
    run.decide(replace(2, 0))
    assert run.origins.of(2) == Weights(Saved(3), 41), "a copy of a copy"


def test_donors_give_what_they_had_before_any_change_of_the_comparison(run):
    run.decide(replace(0, 1), replace(1, 0), replace(2, 3), Restart(3, VALUES, ""))
    assert [w.origin for w in run.all()] == [Saved(1), Saved(0), Saved(3), Drawn(3, 1)]


def test_fresh_weights_are_drawn_again_wherever_they_were_copied_to(run):
    run.train(5)
    run.decide(Restart(3, VALUES, ""))
    run.train(7)
    run.decide(replace(0, 3))
    assert run.origins.of(0) == run.origins.of(3) == Weights(Drawn(3, 1), 7)
    assert (run.origins.drawn_at(3), run.origins.drawn_at(0), run.origins.drawn_at(1)) == (1005, 1005, None)
    run.decide(replace(0, 1))
    assert run.origins.drawn_at(0) is None


def test_shrunk_weights_are_those_of_their_origin_shrunk_again_wherever_they_were_copied_to(run):
    run.train(5)
    pair = (0.2, 0.1)
    run.decide(*(Replace(m, 1, "both", VALUES, "", shrink_perturb=pair) for m in (0, 1)))
    assert run.origins.of(0) == Weights(Shrunk(Saved(1), pair, Drawn(0, 1)), 5)
    run.decide(replace(3, 0))
    run.origins.restored([0, 1, 2, 3])
    assert run.origins.of(3) == run.origins.of(0) == Weights(Shrunk(Saved(1), pair, Drawn(0, 1)), 0)
    run.decide(Replace(2, 3, "both", VALUES, "", shrink_perturb=pair))
    assert run.origins.of(2).origin == Shrunk(run.origins.of(3).origin, pair, Drawn(2, 1)), "shrunk twice"


def test_remembered_states_are_those_of_before_the_comparison(run):
    run.train(5)
    run.decide(replace(0, 1), Mutate(2, VALUES, ""), remembered=[(0, 0), (2, 0)])
    run.train(7)
    assert run.origins.kept[0, 0].weights == Weights(Saved(0), 5)
    assert (run.origins.kept[0, 0].own_frames, run.origins.kept[0, 0].values) == (
        1005,
        {"learning_rate": 0.1},
    )
    run.decide(replace(0, 0, of=0), replace(3, 2, of=0), remembered=[(2, 0)])
    assert [run.origins.of(m) for m in (0, 3)] == [Weights(Saved(0), 5), Weights(Saved(2), 5)]
    assert set(run.origins.kept) == {(2, 0)}


def test_what_was_remembered_when_it_was_saved_lies_in_the_checkpoint():
    run = Run(remembered=[(1, 0)])
    run.decide(replace(3, 1, of=0), remembered=[(1, 0)])
    assert run.origins.of(3).origin == run.origins.kept[1, 0].weights.origin == Saved(1, 0)
    run.origins.begin()
    run.origins.end(whole=True)
    assert run.origins.kept[1, 0].weights == Weights(Saved(1, 0), 0)


def test_a_checkpoint_holds_once_it_is_whole(run):
    run.decide(replace(0, 3))
    run.origins.begin()
    run.decide(replace(1, 0), replace(2, 1))
    assert [w.origin for w in run.all()] == [Saved(3), Saved(3), Saved(1), Saved(3)], "of the one before"
    run.origins.end(whole=True)
    assert [w.origin for w in run.all()] == [Saved(0), Saved(0), Saved(1), Saved(3)]


def test_a_checkpoint_that_is_given_up_changes_nothing(run):
    run.train(5)
    run.origins.begin()
    run.origins.end(whole=False)
    run.origins.end(whole=True)
    assert run.all() == [Weights(Saved(m), 5) for m in range(4)]


def test_restored_members_have_lost_what_they_had_trained(run):
    run.train(5)
    run.decide(replace(0, 3), Continue(1, ""), remembered=[(0, 0), (2, 0)])
    run.origins.restored([0, 1])
    run.train(2)
    assert run.all() == [
        Weights(Saved(3), 2),
        Weights(Saved(1), 2),
        Weights(Saved(2), 7),
        Weights(Saved(3), 7),
    ]
    assert [kept.weights.frames for _, kept in sorted(run.origins.kept.items())] == [0, 5]
