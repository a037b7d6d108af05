"""What is said of a plan, and while a run trains: each remedy that is named is one."""

import re
from dataclasses import replace

import pytest

from pbt_rl.advice.remarks import Remarks
from pbt_rl.plan import Machine
from pbt_rl.plan.sizes import ENOUGH_ACTORS, LEAST_SPARE_ROWS
from pbt_rl.run.views import describe_plan
from tests.helpers.plans import resolved
from tests.helpers.views import member, view


@pytest.mark.parametrize(
    ("cpus", "gpus", "policies"), [(24, 1, 1), (64, 1, 1), (64, 8, 1), (48, 1, 2), (128, 8, 4)]
)
def test_the_batch_that_is_named_for_small_units_makes_them_large_on_all_cores(cpus, gpus, policies):
    run_on = Machine(cpus, gpus)
    options = ("--mode=async", "--learner.returns=gae", "--learner.batch")
    run = resolved("gym/CartPole-v1", f"--num-policies={policies}", *options, "1024", machine=run_on)
    assert min(pack.rows for pack in run.plan.packs) < LEAST_SPARE_ROWS
    (named,) = re.findall(r"--learner\.batch (\d+)", "\n".join(describe_plan(run)))
    plan = resolved("gym/CartPole-v1", f"--num-policies={policies}", *options, named, machine=run_on).plan
    assert min(pack.rows for pack in plan.packs) >= LEAST_SPARE_ROWS
    assert plan.actors >= ENOUGH_ACTORS * plan.wanted_actors


def notes(*options, machine=None) -> str:
    return "\n".join(describe_plan(resolved("gym/CartPole-v1", *options, machine=machine or Machine(2, 0))))


OBEYED = ("--num-policies=1", "--actors=15", "--envs-per-unit=32")


def test_numbers_of_the_user_that_make_rollouts_too_old_are_obeyed_with_a_warning():
    text = notes(*OBEYED)
    assert "15 actors x 2 units x 32 rows" in text
    assert "warning: rollouts will be about 32 updates old" in text
    assert (
        "Use --learner.batch 5120 or --envs-per-unit 6 or --actors 3 or --learner.max-policy-lag 64" in text
    )


@pytest.mark.parametrize(
    "remedy", ["--learner.batch=5120", "--envs-per-unit=6", "--actors=3", "--learner.max-policy-lag=64"]
)
def test_every_remedy_is_one(remedy):
    assert "updates old" not in notes(*OBEYED, remedy)


def test_without_rows_of_the_user_any_number_of_actors_is_fine():
    text = notes("--num-policies=1", "--actors=15")
    assert "updates old" not in text
    assert "(1024 asked for)" in text


def test_idle_cores_are_explained():
    text = notes("--num-policies=1", machine=Machine(64, 1))
    assert "although the cores could serve 63" in text
    assert "although" not in notes("--num-policies=8", machine=Machine(64, 1))
    assert "although" not in notes("--num-policies=1", "--learner.batch=3072", machine=Machine(64, 1))


@pytest.mark.parametrize("cpus", [4, 8, 32])
def test_the_batch_that_is_named_for_idle_cores_uses_more_of_them(cpus):
    """Also where the batch is larger than asked for, as one rollout is as long as that."""
    options = ("--num-policies=2", "--mode=sync", "--learner.rollout=2048", "--hypers.unroll=2048")
    given = (*options, "--learner.minibatches=1", "--learner.batch=2048")
    machine = Machine(cpus, 0)
    few = resolved("gym/CartPole-v1", *given, machine=machine)
    (note,) = (line for line in describe_plan(few) if "although the cores could serve" in line)
    named = re.search(r"--learner\.batch (\d+) uses more", note)
    more = resolved("gym/CartPole-v1", *given[:-1], f"--learner.batch={named[1]}", machine=machine)
    assert more.plan.actors > few.plan.actors


def test_a_first_comparison_that_is_hours_away_is_pointed_out_once():
    run = resolved(
        "gym/CartPole-v1", "--pbt.start-frames=500", "--pbt.period-frames=100", machine=Machine(2, 0)
    )
    far = {"seconds": 40.0, "comparison_in_seconds": 7200.0}
    remarks = Remarks(run)
    assert remarks(view(member(0, frames=200), seconds=20.0, comparison_in_seconds=7200.0)) == []
    assert remarks(view(member(0, frames=200), seconds=40.0, comparison_in_seconds=60.0)) == []
    assert remarks(view(member(0, frames=600), **far)) == [], "it is not the first one"
    (text,) = remarks(view(member(0, frames=600), member(1, frames=200), **far))
    assert "about 2 h away (at 500 frames of each" in text
    assert remarks(view(member(0, frames=200), **far)) == []


def test_restarts_without_an_episode_are_pointed_out_once():
    run = resolved("gym/CartPole-v1", "--max-actor-restarts=3", machine=Machine(2, 0))
    remarks = Remarks(run)
    assert remarks(view(member(0), actors_restarted=3)) == []
    more = replace(member(0), episodes=8)
    assert [remarks(view(more, actors_restarted=n)) for n in (5, 8)] == [[], []]
    (text,) = remarks(view(more, actors_restarted=9))
    assert "actors were restarted 4 times, and no episode has ended in between" in text
    assert remarks(view(more, actors_restarted=20)) == []


def test_a_comparison_that_waits_for_episodes_for_a_whole_period_is_pointed_out_once():
    run = resolved("gym/CartPole-v1", "--pbt.period-frames=100", machine=Machine(2, 0))
    due = {"comparison_in_seconds": 0.0}
    remarks = Remarks(run)
    assert remarks(view(member(0, frames=500), **due)) == []
    assert remarks(view(member(0, frames=600), comparison_in_seconds=3.0)) == [], "it was held"
    assert remarks(view(member(0, frames=650), **due)) == []
    assert remarks(view(member(0, frames=900), **due)) == [], "with short periods some comparison waits"
    (text,) = remarks(view(member(0, frames=1000), replace(member(1, frames=600), control=True), **due))
    assert "has waited for 350 frames of each" in text
    assert "episodes are long" in text
    assert remarks(view(member(0, frames=2000), **due)) == []
    remarks = Remarks(run)
    silent = replace(member(0), episodes=0)
    (_, (text,)) = (remarks(view(replace(silent, frames=n), **due)) for n in (100, 300))
    assert "no episode has ended" in text


@pytest.mark.extra("pbt_rl/pbt/timed")
def test_a_run_that_compares_by_time_is_not_told_of_frames():
    timed = ("--pbt.ready=timed", "--pbt.period-seconds=5", "--train-for-frames=1000")
    assert "compares members first" not in notes(*timed)
    assert "PBT compares members first at 50,000 frames" in notes(
        "--pbt.start-frames=0", "--train-for-frames=1000"
    )
    text = notes(*timed, "--pbt.start-seconds=100", "--train-for-seconds=60")
    assert "PBT compares members first after 100 s, and this run ends after 60" in text
