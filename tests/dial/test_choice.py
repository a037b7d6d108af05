"""What a time holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.dial.choice import BURN_IN, LEAST_ENVIRONMENTS, PERIODS, Measured, TooShortError, chosen

CARTPOLE = Measured(12_000, 25, 30, 500)


def held(choice, measured, seconds, steps):
    """Comparisons of a run whose episodes take so many steps."""
    takes = 2 * steps * choice.members * choice.environments / measured.steps_per_second
    return (1 - BURN_IN) * seconds / max(choice.period_seconds, takes)


@given(
    st.floats(10, 1e6), st.floats(1, 1e5), st.floats(30, 1e6), st.integers(1, 256), st.sampled_from([None, 4])
)
def test_whatever_is_chosen_makes_20_to_50_comparisons(rate, steps, seconds, wanted, members):
    measured = Measured(rate, steps, steps)
    try:
        choice = chosen(seconds, measured, wanted, members)
    except TooShortError as error:
        again = chosen(error.seconds * 1.01, measured, wanted, members)
        assert again.environments >= min(LEAST_ENVIRONMENTS, wanted)
        return
    assert 20 <= held(choice, measured, seconds, 1.5 * steps) <= 50
    assert 1 <= choice.environments <= wanted
    assert members in (None, choice.members)
    assert 2 <= choice.min_episodes <= choice.window


def test_episodes_that_become_as_long_as_they_may_leave_enough_comparisons():
    choice = chosen(144, CARTPOLE, 32)
    assert (choice.members, choice.environments) == (4, 8)
    assert held(choice, CARTPOLE, 144, 500) > 20


def test_more_time_is_for_more_members_with_as_many_environments_as_wanted():
    choice = chosen(7200, CARTPOLE, 32)
    assert (choice.members, choice.environments) == (16, 32)
    assert (
        chosen(7200, Measured(1000, 850, 900, 27_000, images=True), 32).members == 4
    )  # steps for so many only


def test_a_time_too_short_says_which_suffices():
    slow = Measured(1_000, 850, 900, 27_000)
    with pytest.raises(TooShortError) as raised:
        chosen(144, slow, 32)
    assert 144 < raised.value.seconds < 720
    assert chosen(raised.value.seconds * 1.01, slow, 32).members == 2
    with pytest.raises(TooShortError):
        chosen(3, CARTPOLE, 32)


def test_shares_of_the_time():
    choice = chosen(4000, CARTPOLE, 32)
    assert choice.period_seconds == 4000 / PERIODS
    assert choice.start_seconds == BURN_IN * 4000
