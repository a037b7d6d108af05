"""Options that were given and that nothing reads: each is named, and what is read is not."""

import pytest

from pbt_rl.run.plan import Machine
from pbt_rl.run.unread import unread
from tests.helpers.plans import resolved as resolved_on


def resolved(env, *options):
    return resolved_on(env, *options, machine=Machine(2, 0))


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (
            "--pbt.factors 0.5 2",
            ["--pbt.factors 0.5 2 does nothing here: it is read by --pbt.explore factors, resample"],
        ),
        ("--pbt.factors 0.5 2 --pbt.explore factors", []),
        ("--pbt.factors 0.5 2 --pbt.explore resample", []),
        (
            "--pbt.exploit t-test --pbt.replace-gap 0.9",
            [
                "--pbt.replace-gap 0.9 does nothing here: it is read by --pbt.exploit top-middle-bottom, truncation"
            ],
        ),
        ("--pbt.exploit truncation --pbt.replace-gap 0.9", []),
        ("--pbt.replace-gap 0.1", []),
        ("--search.phases 3 --controller hypertrick", []),
        (
            "--search.phases 3",
            ["--search.phases 3 does nothing here: it is read by --controller hypertrick, "],
        ),
        (
            "--controller asha --pbt.exploit t-test --pbt.period-frames 7000 --pbt.min-episodes 9",
            [
                "--pbt.period-frames 7000 does nothing here: --controller asha compares no members by it",
                "--pbt.exploit t-test does nothing here: --controller asha compares no members by it",
            ],
        ),
        (
            "--pbt.no-enabled --pbt.mutation-rate 0.5",
            ["--pbt.mutation-rate 0.5 does nothing here: --pbt.no-enabled"],
        ),
        (
            "--pbt.no-enabled --controller mf-pbt",
            ["--controller mf-pbt does nothing here: --pbt.no-enabled leaves all"],
        ),
        ("--num-policies 1 --pbt.factors 0.5 2", []),
        (
            "--pbt.frequencies 1 2",
            ["--pbt.frequencies 1 2 does nothing here: it is read by --controller mf-pbt"],
        ),
        ("--pbt.frequencies 1 2 --controller mf-pbt --num-policies 8", []),
        (
            "--controller asha --pbt.copy weights",
            ["--pbt.copy weights does nothing here: --controller asha compares"],
        ),
        (
            "--mode serial --learner.max-policy-lag 3",
            ["--learner.max-policy-lag 3 does nothing here: with --mode"],
        ),
        (
            "--hypers.vtrace-rho 2 --mode serial",
            ["--hypers.vtrace-rho 2 does nothing here: --algo appo does not read it with GAE"],
        ),
        ("--hypers.vtrace-rho 2 --learner.returns vtrace", []),
        ("--learner.no-proximal", []),
        (
            "--learner.no-proximal --mode sync",
            ["--learner.proximal false does nothing here: with --mode sync no rollout is older"],
        ),
        (
            "--algo a3c --learner.epochs 3",
            ["--learner.epochs 3 does nothing here: --algo a3c learns once from each"],
        ),
        ("--hypers.unroll 64", ["--hypers.unroll 64 does nothing here: a rollout has 32 steps"]),
        ("--hypers.unroll 64 --learner.rollout 64", []),
        ("--learner.rollout 16", []),
        ("--model.core-size 32", ["--model.core-size 32 does nothing here: the network has no memory"]),
        ("--model.core-size 32 --model.core gru", []),
        ("--learner.lr-schedule-kl 0.02", ["--learner.lr-schedule-kl 0.02 does nothing here: it is read by"]),
        ("--learner.lr-schedule-kl 0.02 --learner.lr-schedule kl-adaptive --mode sync", []),
        ("--learner.target-kl 0.02 --mode sync", []),
        (
            "--learner.target-kl 0.02 --mode sync --learner.epochs 1 --learner.minibatches 1",
            ["--learner.target-kl 0.02 does nothing here: a batch is one optimiser step"],
        ),
        ("--slot-frames 9000", ["--slot-frames 9000 does nothing here: all members train at the same time"]),
        ("--slot-frames 9000 --slots 2", []),
        (
            "--atari.frame-stack 3",
            ["--atari.frame-stack 3 does nothing here: gym/CartPole-v1 does not read it"],
        ),
    ],
)
def test_what_nothing_reads_is_said(text, notes):
    found = unread(resolved("gym/CartPole-v1", *text.split()))
    assert len(found) == len(notes)
    for line, note in zip(found, notes, strict=True):
        assert line.startswith(f"note: {note}")


def test_periods_are_of_frames_or_of_seconds():
    assert unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-seconds", "5")) == []
    (note,) = unread(resolved("toy/identity", "--pbt.period-seconds", "5"))
    assert note == "note: --pbt.period-seconds 5 does nothing here: it is read by --pbt.ready timed"
    (note,) = unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-frames", "500"))
    assert "--pbt.period-frames 500 does nothing here" in note


@pytest.mark.parametrize("env", ["toy/identity", "gym/CartPole-v1", "gym/Pendulum-v1", "atari/pong"])
def test_nothing_is_said_of_what_recipes_choose(env):
    assert unread(resolved(env)) == []
