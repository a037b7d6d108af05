"""Tests for matchmaking: with every scheme, a matchup holds exactly the rows of every slot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.config import MatchupConfig
from pbt_rl.population.matchups.matchmaking import Matchmaker, pair_counts

SCHEMES = ("self", "round-robin", "random", "prioritised")


def even(_slot, _other):
    return 0.5


@st.composite
def crowds(draw):
    """(scheme, slots, envs, vector envs, agents) whose rows fill the agents."""
    scheme, slots, agents = draw(st.sampled_from(SCHEMES)), draw(st.integers(1, 6)), draw(st.integers(2, 4))
    envs = draw(st.integers(1, 4)) * (agents if scheme == "self" or slots * 2 % agents or slots == 1 else 2)
    envs = envs if slots * envs % agents == 0 else envs * agents
    return scheme, slots, envs, draw(st.integers(1, 3)), agents


@given(crowds(), st.integers(0, 3))
def test_every_row_has_exactly_one_agent(crowd, seed):
    scheme, slots, envs, vector_envs, agents = crowd
    maker = Matchmaker(MatchupConfig(scheme=scheme), slots, envs, vector_envs, agents, seed)
    for _ in range(3):
        row_UES = maker.next(even)
        assert row_UES.shape == (vector_envs, slots * envs // agents, agents)
        for vector_env in row_UES:
            assert sorted(vector_env.ravel().tolist()) == list(range(slots * envs))


@given(st.integers(2, 7), st.integers(1, 4), st.sampled_from(SCHEMES[1:]), st.integers(0, 5))
def test_with_two_agents_no_member_plays_itself(slots, half, scheme, seed):
    maker = Matchmaker(MatchupConfig(scheme=scheme), slots, 2 * half, 2, 2, seed)
    slot_UES = maker.next(even) // (2 * half)
    assert (slot_UES[..., 0] != slot_UES[..., 1]).all()


@given(st.integers(2, 4), st.integers(1, 4), st.integers(2, 4))
def test_self_play_has_one_member(slots, games, agents):
    maker = Matchmaker(MatchupConfig(scheme="self"), slots, games * agents, 2, agents, 0)
    slot_UES = maker.next(even) // (games * agents)
    assert (slot_UES == slot_UES[..., :1]).all()


@pytest.mark.parametrize("slots", [3, 4, 5, 8])
def test_round_robin_is_even_over_time(slots):
    maker = Matchmaker(MatchupConfig(), slots, 8, 4, 2, 0)
    played = sum(np.array(pair_counts(maker.next(even), slots, 8)) for _ in range(5))
    others = played[~np.eye(slots, dtype=bool)]
    assert played.trace() == 0
    assert others.max() - others.min() <= 1
    assert others.sum() == slots * 8 * 4 * 5


def test_prioritised_prefers_opponents_that_are_hard_to_beat():
    """Member 0 loses to 3 and beats the others: the one it loses to is its commonest opponent."""

    def rates(slot, other):
        return {(0, 3): 0.1, (3, 0): 0.9}.get((slot, other), 0.9 if slot == 0 else 0.5)

    maker = Matchmaker(MatchupConfig(scheme="prioritised"), 4, 32, 4, 2, 0)
    played = sum(np.array(pair_counts(maker.next(rates), 4, 32)) for _ in range(10))
    assert played[0, 3] > 1.3 * max(played[0, 1], played[0, 2])
    assert min(played[0, 1], played[0, 2]) > 0


def test_equal_seeds_make_equal_matchups_and_agents_are_mixed():
    makers = [Matchmaker(MatchupConfig(scheme="random"), 4, 8, 2, 2, seed) for seed in (0, 0, 1)]
    one, same, other = (np.stack([maker.next(even) for _ in range(4)]) for maker in makers)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    first_agents = (one[..., 0] // 8).ravel()
    assert min(np.bincount(first_agents, minlength=4)) > 0.5 * len(first_agents) / 4
