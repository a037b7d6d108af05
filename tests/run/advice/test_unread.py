"""Options that were given and that nothing reads: each is named, and what is read is not."""

import pytest

from pbt_rl.run.plan import Machine
from pbt_rl.run.shown import unread
from tests.helpers.plans import resolved as resolved_on


def resolved(env, *options):
    return resolved_on(env, *options, machine=Machine(2, 0))


READ = """
--pbt.factors 0.5 2 --pbt.explore factors
--pbt.factors 0.5 2 --pbt.explore resample
--pbt.exploit truncation --pbt.replace-gap 0.9
--pbt.replace-gap 0.1
--search.phases 3 --controller hypertrick
--num-policies 1 --pbt.factors 0.5 2
--pbt.frequencies 1 2 --controller mf-pbt --num-policies 8
--hypers.vtrace-rho 2 --learner.returns vtrace
--learner.no-proximal
--hypers.unroll 64 --learner.rollout 64
--learner.rollout 16
--model.core-size 32 --model.core gru
--learner.lr-schedule-kl 0.02 --learner.lr-schedule kl-adaptive --mode sync
--learner.target-kl 0.02 --mode sync
--slot-frames 9000 --slots 2
"""
UNREAD = {
    "--pbt.factors 0.5 2": "--pbt.explore factors, resample",
    "--pbt.replace-gap 0.9 --pbt.exploit t-test": "--pbt.exploit top-middle-bottom, truncation",
    "--search.phases 3": "--controller hypertrick",
    "--pbt.period-frames 7000 --controller asha --pbt.min-episodes 9": "--controller asha",
    "--pbt.exploit t-test --controller asha": "--controller asha",
    "--pbt.copy weights --controller asha": "--controller asha",
    "--pbt.mutation-rate 0.5 --pbt.no-enabled": "--pbt.no-enabled",
    "--controller mf-pbt --pbt.no-enabled": "--pbt.no-enabled",
    "--pbt.frequencies 1 2": "--controller mf-pbt",
    "--learner.max-policy-lag 3 --mode serial": "--mode",
    "--hypers.vtrace-rho 2 --mode serial": "--algo appo",
    "--learner.proximal false --mode sync": "--mode sync",
    "--learner.epochs 3 --algo a3c": "--algo a3c",
    "--hypers.unroll 64": "32 steps",
    "--model.core-size 32": "no memory",
    "--learner.lr-schedule-kl 0.02": "it is read by",
    "--learner.target-kl 0.02 --mode sync --learner.epochs 1 --learner.minibatches 1": "one optimiser step",
    "--slot-frames 9000": "at the same time",
    "--atari.frame-stack 3": "gym/CartPole-v1",
}
"""Options, of which nothing reads the first -> why."""


@pytest.mark.parametrize("text", UNREAD)
def test_what_nothing_reads_is_said(text):
    (note,) = unread(resolved("gym/CartPole-v1", *text.split()))
    option = text.partition(" --")[0]
    assert note.startswith(f"note: {option} does nothing here: ")
    assert UNREAD[text] in note


@pytest.mark.parametrize("text", READ.strip().splitlines())
def test_nothing_is_said_of_what_is_read(text):
    assert unread(resolved("gym/CartPole-v1", *text.split())) == []


def test_periods_are_of_frames_or_of_seconds():
    assert unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-seconds", "5")) == []
    (note,) = unread(resolved("toy/identity", "--pbt.period-seconds", "5"))
    assert "--pbt.ready timed" in note
    (note,) = unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-frames", "500"))
    assert "--pbt.period-frames 500" in note


@pytest.mark.parametrize("env", ["toy/identity", "gym/CartPole-v1", "gym/Pendulum-v1", "atari/pong"])
def test_nothing_is_said_of_what_recipes_choose(env):
    assert unread(resolved(env)) == []
