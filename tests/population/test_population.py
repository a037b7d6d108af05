import json
import math
from dataclasses import replace

import pytest

from pbt_rl.actors.messages import Episode, LearnerReport, MemberStats
from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Continue, Decision, Evaluate, Mutate
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.population.population import RECENT_EPISODES, Member, Population

WINDOW = 4


def population(members: int = 3, frame_skip: int = 4) -> Population:
    return Population([{"learning_rate": 10.0**-m} for m in range(1, members + 1)], WINDOW, frame_skip)


def episode(member: int, objective: float, generation: int = 0, length: int = 10) -> Episode:
    return Episode(member, generation, objective, objective * 2, objective * 3, length)


def report(members=(), episodes=(), lag_max=0, discarded=0) -> LearnerReport:
    return LearnerReport("cpu", list(members), list(episodes), {}, lag_max, discarded)


def stats(member: int, frames: int, **values: float) -> MemberStats:
    return MemberStats(member, 0, frames, 0, values)


def mutate(member: Member, values: dict[str, float]) -> None:
    member.apply(Change(member.id, "mutate", member.generation + 1, values=values))


def compare(p: Population, decision: Decision) -> None:
    p.apply(changes([decision], p.generations), frozenset())


def test_windows_hold_the_newest_objectives_and_displays_means_of_recent_episodes():
    p = population()
    p.take("a", report(episodes=[episode(1, float(i)) for i in range(6)]))
    seen = p.report().members[1]
    assert seen.objectives == (2.0, 3.0, 4.0, 5.0)
    assert p.report().members[0].objectives == ()
    assert p.views()[1].objective == 3.5
    assert p.views()[0].objective is None
    assert p.views()[1].episodes == 6
    p = population()
    p.take("a", report(episodes=[episode(2, 1e9)] + [episode(2, float(i % 2), length=6) for i in range(100)]))
    shown = p.views()[2].stats
    assert RECENT_EPISODES == 100
    assert (shown["raw_return"], shown["shaped_return"], shown["length_steps"]) == (1.0, 1.5, 6.0)


def test_displays_show_the_objective_of_the_episodes_that_are_compared_next():
    p = Population([{"learning_rate": 0.1}] * 2, 100, 4, environments={0: 2, 1: 2}, compares_newest=True)

    def end_episodes(*objectives: float) -> float:
        for environment, objective in enumerate(objectives):
            p.take("a", report(episodes=[replace(episode(1, objective), environment=environment % 2)]))
        return p.views()[1].objective

    assert end_episodes(0.0, 2.0, 4.0, 6.0) == 3.0
    compare(p, Continue(1, "compared"))
    assert (
        end_episodes() == 5.0
    )  # the newest episode of each environment, because none ended since the comparison
    assert end_episodes(8.0, 10.0) == 9.0
    assert end_episodes(12.0, 14.0) == 11.0
    assert p.report().members[1].objectives == (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0)


def test_while_a_member_is_evaluated_only_episodes_that_began_since_count():
    p = population()
    p.take("a", report(episodes=[episode(1, 5.0)]))
    compare(p, Evaluate(1, 2, "due"))
    p.take("a", report(episodes=[episode(1, 9.0), replace(episode(1, 3.0), evaluation=True)]))
    assert p.report().members[1].objectives == (3.0,)
    compare(p, Continue(1, "over"))
    p.take("a", report(episodes=[episode(1, 9.0)]))
    assert p.report().members[1].objectives == (3.0, 9.0)


def test_a_change_empties_what_was_measured_before_and_what_began_before_does_not_count():
    p = population()
    p.take("a", report(episodes=[episode(0, 1.0), episode(1, 5.0)]))
    mutate(p.members[0], {"learning_rate": 0.5})
    member, other = p.report().members[:2]
    assert (member.objectives, member.generation, member.values) == ((), 1, {"learning_rate": 0.5})
    assert other.objectives == (5.0,)
    view = p.views()[0]
    assert view.objective is None
    assert "raw_return" not in view.stats
    assert view.episodes == 1
    assert view.initial == {"learning_rate": 0.1}
    p = population()
    mutate(p.members[0], {})
    mutate(p.members[0], {})
    p.take("a", report(episodes=[episode(0, 9.0, 0), episode(0, 8.0, 1), episode(0, 1.0, 2)]))
    seen = p.report().members[0]
    assert seen.objectives == (1.0,)
    assert seen.episodes == 1
    assert p.views()[0].episodes == 3
    assert p.views()[0].stats["raw_return"] == 2.0


def test_the_environments_own_statistics_are_averaged_over_the_episodes_that_gave_them():
    p = population()
    mine = [Episode(0, 0, 1.0, 1.0, 1.0, 5, extra) for extra in ({"won": 1.0}, {"won": 0.0, "gold": 7.0}, {})]
    p.take("a", report(episodes=[*mine, Episode(1, 0, 1.0, 1.0, 1.0, 5, {"won": 0.25})]))
    of = [{k: v for k, v in view.stats.items() if k.startswith("stats/")} for view in p.views()]
    assert of == [{"stats/won": 0.5, "stats/gold": 7.0}, {"stats/won": 0.25}, {}]
    p = population()
    p.take("a", report(episodes=[Episode(0, 0, 1.0, 1.0, 1.0, 5, {"seconds_to_crash": 1.7e308})] * 2))
    assert math.isnan(p.views()[0].stats["stats/seconds_to_crash"])


def test_a_restored_population_keeps_what_fits_its_windows_and_refuses_values_of_other_names():
    p = population()
    p.take("a", report(episodes=[episode(1, float(i)) for i in range(6)]))
    p.members[1].best = -math.inf
    state = json.loads(json.dumps(save_state(p), allow_nan=False))
    smaller = Population([{"learning_rate": 0.5}] * 3, WINDOW - 1, 4)
    restore_state(smaller, state)
    seen = smaller.report().members[1]
    assert (seen.objectives, seen.episodes, seen.best) == ((3.0, 4.0, 5.0), 6, -math.inf)
    smaller.take("a", report(episodes=[episode(1, 9.0)]))
    assert smaller.report().members[1].objectives == (4.0, 5.0, 9.0)
    assert smaller.members[1].recent.maxlen == RECENT_EPISODES
    assert smaller.views()[1].initial == {"learning_rate": 0.01}
    other = Population([{"gamma": 0.5}] * 3, WINDOW, 4)
    with pytest.raises(ValueError, match=r"member 0 .*: gamma, learning_rate"):
        restore_state(other, save_state(population()))


def test_the_clock_is_that_of_the_slowest_member_in_training():
    p = population()
    assert p.least_frames == 0
    p.take("a", report([stats(0, 400), stats(1, 80), stats(2, 800)]))
    assert p.least_frames == 80
    assert (p.frames, p.steps) == (1280, 320)
    p.members[1].stopped = True
    assert p.least_frames == 400
    assert p.report().frames == 400
    assert [m.member for m in p.report().members] == [0, 2]
    assert p.views()[1].stopped
    assert not p.all_stopped
    for member in p.members:
        member.stopped = True
    assert p.all_stopped
    assert p.least_frames == 800, "it does not go back when the last one is stopped"


def test_frames_outlive_a_change_and_statistics_stay_until_newer_ones_come():
    p = population()
    p.take("a", report([stats(0, 400)]))
    mutate(p.members[0], {})
    p.take("a", report([stats(0, 500)]))
    assert p.report().members[0].frames == 500
    p = population()
    p.take("a", report([stats(0, 1, entropy=1.0, kl=0.1)]))
    p.take("a", report([stats(0, 2, entropy=2.0)]))
    assert p.views()[0].stats == {"entropy": 2.0, "kl": 0.1}


def test_broken_is_of_the_present_generation_and_stays_until_another_step():
    def broken_after(broken: bool | None, generation: int = 0) -> bool:
        p.take("a", report([MemberStats(0, 0, 0, 0, {}, generation, broken)]))
        return p.report().members[0].broken

    p = population()
    assert [broken_after(False), broken_after(True), broken_after(None)] == [False, True, True]
    mutate(p.members[0], {})
    assert broken_after(True, generation=0) is False, "it was about the weights before"
    assert broken_after(True, generation=1) is True
    assert broken_after(False, generation=1) is False


def test_lag_and_discards_of_several_learners():
    p = population()
    assert p.lag_mean == 0.0
    p.take("a", report([stats(0, 1, lag=2.0), stats(2, 1)], lag_max=5, discarded=3))
    p.take("b", report([stats(1, 1, lag=4.0)], lag_max=2, discarded=10))
    p.take("a", report(lag_max=5, discarded=4))
    assert p.lag_mean == pytest.approx(3.0)
    assert p.lag_max == 5
    assert p.discarded == 14
    p.learner_began("a")
    p.take("a", report(discarded=2))
    p.take("b", report(discarded=10))
    assert p.discarded == 16, "a new learner counts from 0"
    restored = population()
    restore_state(restored, save_state(p))
    restored.take("a", report(discarded=5))
    assert restored.discarded == 21


def test_the_best_window_since_the_last_comparison_or_change():
    def best():
        return p.report().members[0].best

    p = population()
    assert best() is None
    for objective, expected in ((2.0, 2.0), (8.0, 5.0), (-10.0, 5.0), (math.nan, 5.0)):
        p.take("a", report(episodes=[episode(0, objective)]))
        assert best() == expected, "the highest mean of the window, not the highest objective"
    compare(p, Continue(0, ""))
    assert best() is None, "compared: the next interval begins"
    p.take("a", report(episodes=[episode(0, 1.0)] * 4))
    assert best() == 1.0
    mutate(p.members[0], {})
    assert best() is None
    compare(p, Mutate(0, {}, ""))
    p.take("a", report(episodes=[episode(0, 9.0, generation=1)]))
    assert best() is None, "of an older generation"


def test_a_lucky_episode_of_a_share_is_not_the_best_of_an_interval():
    """A whole share counts at once, and fewer rounds than members are compared by are none to protect a member by."""
    p = Population([{}], WINDOW, 4, environments={0: 2}, min_rounds=3)

    def ended(*objectives, generation=0):
        made = [replace(episode(0, o, generation), environment=i % 2) for i, o in enumerate(objectives)]
        p.take("a", report(episodes=made))
        return p.report().members[0]

    assert ended(100.0, 0.0).objectives == (100.0, 0.0)
    assert ended().best is None, "two of three"
    assert ended(20.0, 0.0).best == 30.0, "and not 40, the mean of the first three"
    p = Population([{}], WINDOW, 4, environments={0: 2}, min_rounds=1)
    compare(p, Mutate(0, {}, ""))
    assert ended(0.0, 8.0, generation=1).best == 4.0
