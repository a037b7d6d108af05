"""What is said of comparisons that never come."""

import pytest

from pbt_rl.run.plan import Machine
from pbt_rl.run.shown import describe_plan
from tests.helpers.plans import resolved


def notes(*options) -> str:
    return "\n".join(describe_plan(resolved("gym/CartPole-v1", *options, machine=Machine(2, 0))))


def test_a_run_whose_time_or_frames_do_not_reach_the_first_comparison_is_told():
    timed = ("--pbt.ready=timed", "--pbt.period-seconds=5", "--train-for-frames=1000")
    assert "compares members first" not in notes(*timed)
    assert "members first at 20,000 frames" in notes("--pbt.start-frames=0", "--train-for-frames=1000")
    text = notes(*timed, "--pbt.start-seconds=100", "--train-for-seconds=60")
    assert "PBT compares members first after 100 s, and this run ends after 60" in text
    given = ("--num-policies=4", "--train-for-seconds=10")
    assert "10,000 frames/s in a run of 10 s" in notes(*given)
    assert "members first" not in notes(*given, "--pbt.start-frames=0", "--pbt.period-frames=5000")


CARTPOLE = 4 * 8 * 500
"""Frames in which each of 32 environments ends an episode, as long as its time limit allows."""


def test_what_a_comparison_needs_is_in_the_plan():
    text = notes("--num-policies=4")
    assert "32 environments of each (2 actors x 2 units of 8)" in text
    assert f"an episode of each of a member's 32 environments: up to {CARTPOLE:,} frames" in text
    assert "warning" not in text
    assert "with one policy PBT has nothing to compare" in notes("--num-policies=1")
    assert "nothing to compare" not in notes("--num-policies=1", "--pbt.no-enabled")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pbt.period-frames=15999",), "is less than 16,000, which an episode of each"),
        (("--pbt.period-frames=16000",), ""),
        (
            ("--pbt.period-frames=900", "--env-option=max_episode_steps=10"),
            "is less than 1,024, which a member",
        ),
        (("--pbt.period-frames=900", "--pbt.ready=timed", "--pbt.period-seconds=9"), ""),
    ],
)
def test_a_period_in_which_nothing_can_be_compared_is_warned_of(options, said):
    warned = [line for line in notes("--num-policies=4", *options).splitlines() if "warning" in line]
    assert len(warned) == bool(said)
    assert all(said in line and "--pbt.period-frames" in line for line in warned)
