"""Tests for ratings: Elo against a slow loop written from the formula, and ratings that follow copied weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.actors.messages import Episode, Game, LearnerReport
from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Continue, Mutate, Replace, Restart
from pbt_rl.population.matchups.ratings import START, Ratings
from pbt_rl.population.population import Population

GAME = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1)), min_size=2, max_size=4)
GAMES = st.lists(GAME, max_size=30)


def slow_elo(games, k):
    """One pair of agents after the other; all points of a game are added when it is over."""
    rating = dict.fromkeys(range(4), START)
    for game in games:
        points = dict.fromkeys(rating, 0.0)
        for i, (a, own) in enumerate(game):
            for j, (b, other) in enumerate(game):
                if i == j or a == b:
                    continue
                expected = 1 / (1 + 10 ** ((rating[b] - rating[a]) / 400))
                score = 1 if own > other else 0 if own < other else 0.5
                points[a] += k / (len(game) - 1) * (score - expected)
        for member, gained in points.items():
            rating[member] += gained
    return [rating[m] for m in range(4)]


@given(GAMES, st.sampled_from([4.0, 32.0]))
def test_elo_is_the_formula(games, k):
    ratings = Ratings(4, k)
    for game in games:
        ratings.note_game([m for m, _ in game], [o for _, o in game])
    assert ratings.elo == pytest.approx(slow_elo(games, k))
    assert sum(ratings.elo) == pytest.approx(4 * START)


def test_scores_are_against_others_only():
    ratings = Ratings(3, 8.0)
    assert ratings.note_game((0, 0), (1, -1)) == []
    assert ratings.elo == [START] * 3
    assert ratings.note_game((0, 1, 0, 2), (3, 2, 1, 2)) == [(0, 1.0), (1, 1.5 / 3), (0, 0.0), (2, 1.5 / 3)]


def follow(ratings, decisions, remembered=()):
    ratings.follow(changes(decisions, dict.fromkeys(range(3), 0)), frozenset(remembered))


def played():
    ratings = Ratings(3, 32.0)
    for _ in range(5):
        ratings.note_game((0, 1), (1, 0))
        ratings.note_game((1, 2), (1, 0))
    return ratings


def test_ratings_go_with_the_weights():
    ratings = played()
    before, beats = list(ratings.elo), ratings.win_rate(0, 2)
    values = {"learning_rate": 1e-3}
    swap = [Replace(2, 0, "both", values, ""), Mutate(0, values, ""), Continue(1, "")]
    follow(ratings, swap)
    assert ratings.elo == [before[0], before[1], before[0]]
    assert ratings.win_rate(2, 1) == ratings.win_rate(0, 1) > 0.5
    assert ratings.win_rate(0, 2) == beats == 0.5, "a copy has not played its donor"
    follow(ratings, [Replace(1, 2, "hypers", values, "")])
    assert ratings.elo[1] == before[1], "its weights are its own still"
    follow(ratings, [Restart(2, values, "")])
    assert ratings.elo[2] == START
    assert ratings.win_rate(2, 1) == 0.5


def test_all_donors_are_taken_as_they_were():
    ratings = played()
    before = list(ratings.elo)
    follow(ratings, [Replace(0, 2, "both", {}, ""), Replace(2, 0, "both", {}, "")])
    assert ratings.elo == [before[2], before[1], before[0]]


def test_pair_results_of_members_that_change_together_are_those_of_their_donors():
    ratings = Ratings(4, 32.0)
    for _ in range(5):
        ratings.note_game((0, 1), (1, 0))
        ratings.note_game((0, 2), (1, 0))
        ratings.note_game((0, 3), (0, 1))
    beats = ratings.win_rate(0, 1)
    both = [Replace(2, 0, "both", {}, ""), Replace(3, 1, "both", {}, "")]
    ratings.follow(changes(both, dict.fromkeys(range(4), 0)), frozenset())
    assert ratings.win_rate(2, 3) == ratings.win_rate(0, 3) == ratings.win_rate(2, 1) == beats > 0.5
    assert ratings.win_rate(3, 2) == pytest.approx(1 - beats)
    copies = [Replace(2, 0, "both", {}, ""), Replace(3, 0, "both", {}, "")]
    ratings.follow(changes(copies, dict.fromkeys(range(4), 0)), frozenset())
    assert ratings.win_rate(2, 3) == ratings.win_rate(3, 2) == 0.5, "two copies have not played each other"


def test_a_remembered_state_has_the_rating_of_its_time():
    ratings = played()
    then = ratings.elo[0]
    follow(ratings, [], {(0, 0)})
    for _ in range(5):
        ratings.note_game((0, 2), (0, 1))
    assert ratings.elo[0] < then
    follow(ratings, [Replace(0, 0, "both", {}, "", donor_generation=0)], {(0, 0)})
    assert ratings.elo[0] == then
    follow(ratings, [])
    follow(ratings, [Replace(1, 0, "both", {}, "", donor_generation=0)])
    assert ratings.elo[1] == ratings.elo[0], "forgotten: the donor as it is"


def report(games, episodes=()):
    return LearnerReport("cpu", [], list(episodes), {}, 0, 0, games)


@pytest.mark.parametrize(
    ("judge", "objectives"), [("return", (7.0,)), ("win-rate", (1.0, 0.5)), ("elo", None)]
)
def test_what_members_are_ranked_by(judge, objectives):
    population = Population([{}, {}], 10, 1, ratings=Ratings(2, 8.0, judge))
    episode = Episode(0, 0, 7.0, 7.0, 7.0, 3)
    scores = {(0, 1): (7.0, 2.0), (1, 0): (4.0, 4.0), (0, 0): (1.0, 2.0)}
    games = [Game(members, (0, 0), score) for members, score in scores.items()]
    population.take("cpu", report(games, [episode]))
    seen = population.report().members[0]
    elo = population.ratings.elo[0]
    assert seen.objectives == (objectives or (elo,))
    assert seen.episodes == (1 if judge == "return" else 2)
    view = population.views()[0]
    assert (view.stats["elo"], view.stats["win_rate"]) == (elo, 0.75)
    assert elo > START


def test_a_game_begun_in_an_older_generation_does_not_count():
    population = Population([{}, {}], 10, 1, ratings=Ratings(2, 8.0, "elo"))
    population.members[1].apply(Change(1, "mutate", 1, values={}))
    population.take("cpu", report([Game((0, 1), (0, 0), (1.0, 0.0))]))
    assert population.ratings.elo == [START, START]
    assert population.report().members[0].objectives == ()
    population.take("cpu", report([Game((0, 1), (0, 1), (1.0, 0.0))]))
    assert population.ratings.elo[0] > START
