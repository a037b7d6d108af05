from random import Random
from statistics import fmean

import pytest

from pbt_rl.actors.messages import Episode, LearnerReport, MemberStats
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.population.population import EqualShares, Population


def judged(objective: float) -> tuple[int, float, float]:
    return (0, objective, objective)


def objectives(counting) -> list[float]:
    return [objective for _, objective, _ in counting]


def test_nothing_counts_before_every_environment_has_ended_an_episode():
    shares = EqualShares(3, 2, 10**9)
    assert [shares.end_episode(e, judged(x)) for e, x in ((1, 1.0), (1, 2.0), (1, 3.0), (0, 4.0))] == [[]] * 4
    assert objectives(shares.end_episode(2, judged(5.0))) == [4.0, 1.0, 5.0], "the first of each, in order"
    assert shares.end_episode(2, judged(6.0)) == []
    assert objectives(shares.end_episode(0, judged(7.0))) == [7.0, 2.0, 6.0], "the third of 1 was too many"
    assert objectives(shares.end_episode(1, judged(8.0))) == [8.0], "filled evenly: the newest count"
    shares.restart(0)
    assert shares.end_episode(1, judged(9.0)) == []


def test_an_evaluation_takes_as_many_rounds_as_it_has_to_and_no_more():
    shares = EqualShares(2, 5, 10**9)
    shares.restart(0, 3)
    for round_ in (1.0, 2.0):
        assert shares.end_episode(0, judged(round_)) == []
        assert objectives(shares.end_episode(1, judged(-round_))) == [round_, -round_]
    assert objectives(shares.end_episode(0, judged(3.0))) == [3.0], "two rounds are three episodes or more"
    shares.restart(0)
    shares.end_episode(0, judged(1.0)), shares.end_episode(1, judged(1.0))
    assert shares.end_episode(0, judged(9.0)) == [], "else a whole window is shared evenly"


def test_nobody_waits_for_an_episode_that_never_ends():
    shares = EqualShares(3, 2, 1000)
    shares.restart(500)
    for e, x in ((2, 1.0), (0, 2.0), (2, 3.0)):
        assert shares.end_episode(e, judged(x)) == []
    assert shares.note_frames(1499) == []
    assert objectives(shares.note_frames(1500)) == [2.0, 1.0, 3.0]
    assert shares.note_frames(1600) == []
    assert objectives(shares.end_episode(0, judged(4.0))) == [4.0]


def test_what_is_held_is_bounded():
    shares = EqualShares(2, 3, 10**9)
    for i in range(1000):
        shares.end_episode(0, judged(float(i)))
    assert objectives(shares.end_episode(1, judged(-1.0))) == [0.0, -1.0]
    assert objectives(shares.end_episode(1, judged(-2.0))) == [1.0, -2.0]


@pytest.mark.parametrize("at", range(1, 24, 4))
def test_restored_it_goes_on_as_if_nothing_had_happened(at):
    rng = Random(at)
    shares, again = EqualShares(3, 4, 100), EqualShares(3, 4, 100)
    for number in range(40):
        if number == at:
            again = EqualShares(3, 4, 100)
            restore_state(again, save_state(shares))
        environment, episode = rng.choice((0, 0, 0, 1, 2)), judged(rng.random())
        assert again.end_episode(environment, episode) == shares.end_episode(environment, episode)
        assert again.note_frames(number) == shares.note_frames(number)


def test_on_a_plan_with_fewer_environments_the_others_are_not_waited_for():
    shares, fewer, smaller = EqualShares(3, 4, 10**9), EqualShares(2, 4, 10**9), EqualShares(3, 1, 10**9)
    for e in (0, 2, 1):
        shares.end_episode(e, judged(float(e)))
    shares.end_episode(2, judged(5.0))
    state = save_state(shares)
    restore_state(fewer, state)
    assert fewer.end_episode(0, judged(6.0)) == []
    assert objectives(fewer.end_episode(1, judged(7.0))) == [6.0, 7.0]
    restore_state(smaller, state)
    assert objectives(smaller.end_episode(0, judged(8.0))) == [8.0], "its window is full already"


def test_short_episodes_count_no_more_than_long_ones():
    """Half of the episodes last 20 steps and are worth 20, half last 500: the mean is 260 whenever one looks."""
    estimates: dict[int, list[float]] = {60: [], 300: [], 1100: [], 2500: []}
    for seed in range(300):
        rng = Random(seed)
        p = Population([{}], 20, 1, environments={0: 4})
        left = [rng.choice((20, 500)) for _ in range(4)]
        length = list(left)
        for step in range(20, max(estimates) + 1, 20):
            for e in range(4):
                left[e] -= 20
                if not left[e]:
                    value = float(length[e])
                    episode = Episode(0, 0, value, value, value, length[e], environment=e)
                    p.take("a", LearnerReport("cpu", [], [episode], {}, 0, 0))
                    left[e] = length[e] = rng.choice((20, 500))
            if step in estimates and (known := p.report().members[0].objectives):
                estimates[step].append(fmean(known))
    assert len(estimates[60]) < 0.1 * 300, "no member is judged before its long episodes have ended..."
    assert len(estimates[1100]) == 300
    for step in (1100, 2500):
        assert fmean(estimates[step]) == pytest.approx(260, abs=25)


def test_a_member_of_several_environments_waits_and_is_not_starved():
    p = Population([{}, {}], 4, 1, environments={0: 2, 1: 1}, timeout_frames=100)

    def told(frames, *episodes):
        stats = [MemberStats(m, 0, frames, 0) for m in (0, 1)]
        made = [Episode(m, 0, x, x, x, 1, environment=e) for m, e, x in episodes]
        p.take("a", LearnerReport("cpu", stats, made, {}, 0, 0))
        return [(m.objectives, m.episodes) for m in p.report().members]

    assert told(10, (0, 1, 1.0), (1, 0, 5.0)) == [((), 0), ((5.0,), 1)]
    assert p.views()[0].objective is None
    assert told(99) == [((), 0), ((5.0,), 1)]
    assert told(100) == [((1.0,), 1), ((5.0,), 1)]


def test_with_tasks_the_window_counts_rounds_of_all_of_them():
    p = Population([{}], 4, 1, tasks=("a", "b", "c"), environments={0: 2})
    assert p.members[0].shares.rounds == 6, "4 rounds of 3 tasks, from 2 environments"
