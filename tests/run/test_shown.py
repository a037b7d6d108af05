"""Tests of the description of a run before training."""

import re

import pytest
from torch import nn

from pbt_rl.run.shown import describe_plan, environments_each, page, unread, usual_wait
from tests.helpers.plans import resolved


def notes(*options) -> str:
    return "\n".join(describe_plan(resolved("gym/CartPole-v1", *options)))


def test_a_run_whose_time_or_frames_do_not_reach_the_first_comparison_is_told():
    timed = ("--pbt.ready=timed", "--pbt.period-seconds=5", "--train-for-frames=1000")
    assert "first comparison" not in notes(*timed)
    late = ("--pbt.start-frames=0", "--pbt.period-frames=20000", "--train-for-frames=1000")
    assert re.search(r"first comparison .*\b20,000 frames", notes(*late))
    text = notes(*timed, "--pbt.start-seconds=100", "--train-for-seconds=60")
    assert re.search(r"\b1 min 40 s.*\b1 min", text)
    given = ("--num-policies=4", "--train-for-seconds=10")
    assert re.search(r"\b10,000 frames/s .*\b10 s", notes(*given, "--pbt.start-frames=25000"))
    assert "first comparison" not in notes(*given, "--pbt.start-frames=0", "--pbt.period-frames=5000")


class Unused(nn.Module):
    """Encoder with a layer that it does not use."""

    def __init__(self, shapes):
        super().__init__()
        self.read, self.more = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, obs):
        return self.read(obs["obs"])


def test_weights_that_are_not_trained_are_a_warning():
    warned = [
        line for line in notes(f"--model.encoder={__name__}:Unused").splitlines() if "warning: " in line
    ]
    assert len(warned) == 1
    assert "more.weight, more.bias" in warned[0]


CARTPOLE = 4 * 8 * 500
"""Frames in which each of 32 environments ends an episode, as long as its time limit allows."""


def test_what_a_comparison_needs_is_in_the_plan():
    text = notes("--num-policies=4")
    assert re.search(r"\b25,000 .*\b20,000, .*\b24 ", text)
    assert re.search(r"\b32 .*\b2 .*\b2 .*\b8\)", text)
    assert re.search(rf"\b32 environments: .*\b{CARTPOLE:,} frames", text)
    assert "warning" not in text
    assert "--num-policies 4" in notes("--num-policies=1")
    assert "--num-policies 4" not in notes("--num-policies=1", "--pbt.no-enabled")


@pytest.mark.parametrize(
    ("options", "most", "least"),
    [
        ("--train-for-frames=20k", 19, 1),
        ("--train-for-frames=1M", 24, 24),
        ("--pbt.ready=timed --pbt.period-seconds=9 --train-for-seconds=300", 33, 9),
        ("--pbt.ready=timed --pbt.period-seconds=90 --train-for-seconds=900", 9, 9),
    ],
)
def test_the_number_of_comparisons_depends_on_batches_and_episodes(options, most, least):
    (line,) = (one for one in notes("--num-policies=4", *options.split()).splitlines() if "at most" in one)
    assert re.search(rf", at most {most} ", line)
    assert re.search(rf"\(about {least} ", line) or most == least


@pytest.mark.parametrize(("frames", "wait"), [("200k", 16_000), ("40k", 1_600), ("2M", 80_000)])
def test_episodes_of_a_known_length_need_no_warning(frames, wait):
    run = resolved("gym/CartPole-v1", "--num-policies=4", "--train-for-frames", frames)
    assert environments_each(run) == 32
    assert usual_wait(run) == wait, "32 episodes of 500 steps, a period, or a period that is longer"


def test_the_rollout_age_is_a_line_of_show_alone():
    run = resolved("gym/CartPole-v1", "--num-policies=4")
    (first, *_) = page(run, run.controller().initial(run.config.members)[0])
    assert "rollout age: " in first
    assert "age: " not in "\n".join(describe_plan(run))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--actors=1", "--envs-per-vector-env=2"), ["1024", "32"]),
        (("--actors=1", "--envs-per-vector-env=2", "--learner.batch=2048"), ["--learner.batch 2048", "64"]),
        (("--learner.batch=1030",), ["--learner.batch 1030"]),
        ((), []),
    ],
)
def test_another_batch_than_the_option_is_explained(options, reason):
    (batch,) = (line.split("; ")[2] for line in notes(*options).splitlines() if line.startswith("learner 0"))
    assert re.findall(r"(?:--\S+ )?\d+", batch.partition("(")[2]) == reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pbt.period-frames=15999",), " 16,000, .*episode"),
        (("--pbt.period-frames=16000",), ""),
        (("--env=tensors/pendulum", "--env-option=limit=90", "--pbt.period-frames=8k"), " 23,040,"),
        (("--pbt.period-frames=900", "--env-option=max_episode_steps=10"), " 1,024, .*batch"),
        (("--pbt.period-frames=900", "--pbt.ready=timed", "--pbt.period-seconds=9"), ""),
    ],
)
def test_a_period_in_which_nothing_can_be_compared_is_warned_of(options, said):
    warned = [line for line in notes("--num-policies=4", *options).splitlines() if "warning" in line]
    assert len(warned) == bool(said)
    assert all(re.search(said, line) and "--pbt.period-frames" in line for line in warned)


# -- options that nothing reads -----------------------------------------------------------------------------


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
    "--learner.lr-schedule-kl 0.02": "kl-adaptive",
    "--learner.target-kl 0.02 --mode sync --learner.epochs 1 --learner.minibatches 1": "one optimiser step",
    "--slot-frames 9000": "at the same time",
    "--atari.frame-stack 3": "gym/CartPole-v1",
    "--hypers.learning-rate 0.01 --pbt.tune learning_rate=1e-5:1e-3": "random value",
    "--hypers.learning-rate 0.0002 --controller hypertrick": "the search draws",
}
"""Options, of which nothing reads the first -> why."""


@pytest.mark.parametrize("text", UNREAD)
def test_what_nothing_reads_is_said(text):
    (note,) = unread(resolved("gym/CartPole-v1", *text.split()))
    option = text.partition(" --")[0]
    assert note.startswith(f"note: {option} ")
    assert UNREAD[text] in note


@pytest.mark.parametrize("text", READ.strip().splitlines())
def test_nothing_is_said_of_what_is_read(text):
    assert unread(resolved("gym/CartPole-v1", *text.split())) == []


def test_a_reward_weight_outside_its_range_is_said():
    words = ["--num-policies", "2", "--shaping.bait", "3", "--pbt.tune", "shaping.bait=0.1:1"]
    (note,) = unread(resolved("toy/shaped", *words))
    assert note.startswith("note: --shaping.bait 3 has no effect: it is outside 0.1 to 1")


@pytest.mark.parametrize(
    "more", ["--num-policies 1", "--pbt.no-enabled", "--pbt.start-values learning_rate=1e-4"]
)
def test_a_learning_rate_outside_its_range_counts_where_nothing_is_drawn(more):
    words = f"--hypers.learning-rate 0.01 --pbt.tune learning_rate=1e-5:1e-3 {more}"
    assert not [
        note for note in unread(resolved("gym/CartPole-v1", *words.split())) if "learning-rate" in note
    ]


def test_a_resumed_run_has_no_note_on_its_first_comparison():
    late = resolved("toy/identity", "--pbt.start-frames", "1000", "--train-for-frames", "500")
    assert any("first comparison" in line for line in describe_plan(late))
    assert not any("first comparison" in line for line in describe_plan(late, begun=True))


def test_periods_are_of_frames_or_of_seconds():
    assert unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-seconds", "5")) == []
    (note,) = unread(resolved("toy/identity", "--pbt.period-seconds", "5"))
    assert "--pbt.ready timed" in note
    (note,) = unread(resolved("toy/identity", "--pbt.ready", "timed", "--pbt.period-frames", "500"))
    assert "--pbt.period-frames 500" in note


@pytest.mark.parametrize("env", ["toy/identity", "gym/CartPole-v1", "gym/Pendulum-v1", "atari/pong"])
def test_nothing_is_said_of_what_recipes_choose(env):
    assert unread(resolved(env)) == []
