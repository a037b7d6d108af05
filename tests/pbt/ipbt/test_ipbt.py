"""IPBT: what stagnation is, what a restart does, and that both are decided again bit for bit."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("sklearn")

from pbt_rl.config import Hypers
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import Replace, Restart
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.pbt.ipbt.controller import PATIENCE
from pbt_rl.pbt.ipbt.stagnation import improves, is_slow, smoothed, standardized
from pbt_rl.pbt.state import restore_state, save_state
from tests.helpers.populations import OFTEN, build, member, report

TABLE = hyper_table(Hypers())
PBT = replace(OFTEN, explore="factors")
BUDGET = 10_000_000  # of the default config


class Driven:
    """A controller and the members that its decisions change."""

    def __init__(self, **options):
        self.controller = build(replace(PBT, **options), TABLE, 0, 8, "ipbt")
        self.values, self.generations = self.controller.initial(8), [0] * 8
        self.frames = 0

    def compare(self, best, period=100, broken=(), late=()):
        """One comparison; member i has best - i, and nothing if it is `late`."""
        self.frames += period
        seen = [
            member(
                i,
                () if i in late else (best - i,),
                frames=self.frames,
                generation=self.generations[i],
                values=self.values[i],
                broken=i in broken,
            )
            for i in range(8)
        ]
        decisions = self.controller.observe(report(self.frames, seen))
        for d in decisions:
            if hasattr(d, "values"):
                self.values[d.member], self.generations[d.member] = d.values, self.generations[d.member] + 1
        return decisions


def test_progress_is_a_smoothed_rise():
    assert improves([3.0])
    assert improves([1.0, 2.0])
    assert not improves([2.0, 1.0])
    assert not improves([2.0, 2.0])
    rising = [float(i) for i in range(10)]
    assert improves(rising)
    assert improves([*rising, 8.8]), "a small dip in a long rise is noise"
    assert not improves([*rising, 8.0, 6.0, 4.0])


def test_smoothing_keeps_a_line_and_evens_noise():
    line = smoothed(standardized([float(i) for i in range(8)]))
    assert line == pytest.approx(standardized([float(i) for i in range(8)]), abs=0.1)
    noise = smoothed(standardized([0.0, 1.0] * 8))
    assert max(noise) - min(noise) < 1.0


@pytest.mark.parametrize(
    ("bests", "slow"),
    [
        ([float(i) for i in range(15)], False),
        ([float(i) for i in range(14)], False),
        ([10.1, *[10.0 + 0.1 * (-1) ** i for i in range(14)]], True),
        ([0.0, 9.0, *[9.0] * 14], True),
        ([0.0, *[9.0] * 14], False),
    ],
)
def test_less_than_a_deviation_in_fifteen_comparisons_is_slow(bests, slow):
    """By hand: the highest of all less the highest of all but the last 14, in deviations."""
    assert is_slow(bests) == slow


def test_without_progress_everything_begins_again_with_periods_twice_as_long():
    run = Driven()
    for best in (10.0, 11.0, 12.0):
        assert not any(getattr(d, "shrink_perturb", None) for d in run.compare(best))
    for _ in range(PATIENCE - 1):
        run.compare(8.0)
    restarted = run.compare(7.0)
    assert [type(d) for d in restarted] == [Replace] * 8
    assert {d.shrink_perturb for d in restarted} == {(0.2, 0.1)}
    assert [d.donor for d in restarted[:2]] == [0, 1], "the best quarter keeps its own"
    assert {d.donor for d in restarted[2:]} <= {0, 1}
    drawn = [d for d in restarted if "drawn anew" in d.reason]
    assert len(drawn) == 4
    assert all("periods of 200 frames" in d.reason for d in restarted)
    assert run.compare(9.0) == [], "a period is longer now"
    assert run.compare(9.0) != []
    assert run.controller._bests == [9.0], "an iteration remembers nothing of the one before"
    run.compare(9.5)
    assert not any(getattr(d, "shrink_perturb", None) for d in run.compare(9.5))


def test_backtracking_forgets_the_elites_of_before_a_restart():
    """Shrunk weights score less than any of them, so that every member would become a copy of one."""
    run = Driven(exploit="backtrack")
    for best in (10.0, 11.0, 10.0, 9.0):
        run.compare(best)
    assert run.controller.exploit.remembers()
    assert run.compare(8.0)[0].shrink_perturb
    begun = list(run.generations)
    assert not run.controller.exploit.remembers()
    for best in (1.0, 2.0, 3.0):
        run.compare(best)  # half of a period
        back = [d for d in run.compare(best) if getattr(d, "donor_generation", None) is not None]
        assert all(d.donor_generation >= begun[d.donor] for d in back)
    assert run.controller.exploit.remembers(), "an iteration has elites of its own"


def test_what_breaks_with_shrunk_weights_begins_again_and_not_with_those_of_before():
    run = Driven()
    for best in (10.0, 9.0, 8.0):
        run.compare(best)
    assert run.compare(7.0)[7].shrink_perturb
    assert run.controller.remembers() == {(0, 0)}, "the best weights of the iteration"
    (again,) = run.compare(1.0, period=10, broken=[7])
    assert isinstance(again, Restart)


def test_members_that_could_not_be_compared_restart_with_the_others():
    """With the weights of before they would be the best of the next comparison by far, and everybody's donors."""
    run = Driven()
    for best in (10.0, 9.0, 8.0):
        run.compare(best)
    restarted = run.compare(7.0, late=[0, 6])
    assert [(d.member, d.shrink_perturb) for d in restarted] == [(i, (0.2, 0.1)) for i in range(8)]
    assert {restarted[0].donor, restarted[6].donor} <= {1, 2}, "the best of those that were compared"


@pytest.mark.parametrize(("now", "back"), [(1.0, True), (7.0, False)])
def test_at_the_end_the_best_weights_of_all_iterations_are_back(now, back):
    run = Driven()
    run.controller.budget_frames = 1000
    for best in (10.0, 9.0, 8.0):
        run.compare(best)
    values = dict(run.values[0])
    assert run.compare(7.0)[0].shrink_perturb
    assert not any(d.reason.startswith("back to the best") for d in run.compare(now, 200)), (
        "at 600 of 1,000 frames"
    )
    last = run.compare(now, 200)[7]
    assert last.reason.startswith("back to the best weights of an iteration before, which had 7") == back
    if back:
        assert (last.donor, last.donor_generation, last.copy, last.values) == (0, 0, "both", values)
        assert (0, 0) in run.controller.remembers()


def test_drawn_values_come_from_the_priors_also_if_the_rule_would_stay_near_the_copied_ones():
    run = Driven(explore="perturb", tune=("learning_rate",))
    for best in (10.0, 9.0, 8.0):
        run.compare(best)
    before = [values["learning_rate"] for values in run.values]
    drawn = [d for d in run.compare(7.0) if "drawn anew" in d.reason]
    factors = [d.values["learning_rate"] / before[d.donor] for d in drawn]
    assert max(max(f, 1 / f) for f in factors) > 1.5**2, (
        "perturb moves by 1.5 at most, at the start by its square"
    )


@pytest.mark.parametrize("copy", ["weights", "hypers"])
def test_a_restart_copies_both_so_nothing_else_can_be_asked_for(copy):
    with pytest.raises(ConfigError, match=f"--pbt.copy {copy} .*use both"):
        Driven(copy=copy)


def test_nothing_restarts_if_two_longer_periods_would_not_fit():
    run = Driven(period_frames=3_000_000)
    run.controller.budget_frames = 40_000_000
    for best in (5.0, 4.0, 3.0, 2.0):
        last = run.compare(best, 3_000_000)
    assert last[0].shrink_perturb, "at 12 of 40 million, with 6 million a period"
    run = Driven(period_frames=3_000_000)
    run.controller.budget_frames = 23_000_000
    for best in (5.0, 4.0, 3.0, 2.0, 1.0):
        assert not any(getattr(d, "shrink_perturb", None) for d in run.compare(best, 3_000_000))


def test_a_member_without_a_finite_objective_copies_and_none_at_all_restarts_nothing():
    run = Driven()
    for _ in range(10):
        run.compare(math.nan)
    assert run.controller.restarts == 0


def test_beside_a_restart_a_broken_copy_begins_anew():
    """Its weights of before would be better trained than all others, which are shrunk, and everybody's donor."""
    run = Driven()
    for best in (10.0, 9.0, 8.0):
        copies = run.compare(best)
    assert isinstance(copies[7], Replace)
    decisions = run.compare(7.0, broken=[7])
    assert run.controller.restarts == 1
    assert all(d.shrink_perturb for d in decisions[:7])
    assert isinstance(decisions[7], Restart)


@pytest.mark.parametrize("exploit", ["truncation", "backtrack"])
def test_a_restored_controller_decides_the_same(exploit):
    run = Driven(exploit=exploit)
    for best in (10.0, 11.0, 12.0, 11.0):
        run.compare(best)
    again = Driven(exploit=exploit)
    restore_state(again.controller, save_state(run.controller))
    again.values, again.generations, again.frames = list(run.values), list(run.generations), run.frames
    for best in (10.0, 9.0, 8.0, 7.0, 7.0, 6.0, 9.0, 9.0):
        assert again.compare(best) == run.compare(best)
    assert run.controller.restarts == again.controller.restarts == 1


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(ConfigError, match="at least 4 members"):
        build(PBT, TABLE, 0, 3, "ipbt")
    with pytest.raises(ConfigError, match="use synchronous"):
        build(replace(PBT, ready="asynchronous"), TABLE, 0, 8, "ipbt")
