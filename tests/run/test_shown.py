"""What is said of comparisons that never come."""

from pbt_rl.run.plan import Machine
from pbt_rl.run.views import describe_plan
from tests.helpers.plans import resolved


def notes(*options) -> str:
    return "\n".join(describe_plan(resolved("gym/CartPole-v1", *options, machine=Machine(2, 0))))


def test_a_run_that_compares_by_time_is_not_told_of_frames():
    timed = ("--pbt.ready=timed", "--pbt.period-seconds=5", "--train-for-frames=1000")
    assert "compares members first" not in notes(*timed)
    assert "PBT compares members first at 20,000 frames" in notes(
        "--pbt.start-frames=0", "--train-for-frames=1000"
    )
    text = notes(*timed, "--pbt.start-seconds=100", "--train-for-seconds=60")
    assert "PBT compares members first after 100 s, and this run ends after 60" in text
