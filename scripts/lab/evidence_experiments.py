"""The experiments of `evidence.py`: tasks, methods, frames, seeds. docs/lab/evidence.md is their protocol in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from reproduce_rl import drawn_defaults

from pbt_rl.config import Hypers
from pbt_rl.pbt import HyperSpec, sample_prior
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.pbt.tuning import chosen

Start = Callable[[int, int], Sequence[str]]
"""(seed, members) -> options that give the members their first values."""
BASELINE = "random"
"""The arm that all others are compared with."""


@dataclass(frozen=True)
class Arm:
    """One method. members times frames need not be those of other arms: a search stops most of its members early."""

    options: tuple[str, ...]
    members: int
    frames: int
    """Of a member that trains to the end."""
    start: Start


@dataclass(frozen=True)
class Experiment:
    """Runs on one task that differ in their method."""

    title: str
    seeds: int
    options: tuple[str, ...]
    """Of every run."""
    arms: Mapping[str, Arm]
    games: int
    """Validation games of each saved member, and as many test games."""
    collapsed: float
    """A picked member below this has learned next to nothing."""


def drawn_members(tuned: Sequence[str], seed: int, members: int) -> list[str]:
    """Return `--pbt.start-values` with values of all members, drawn from the priors by the seed alone.

    The first members of all methods begin with the same values so. tuned: as `--pbt.tune` takes them.
    """
    table, rng = chosen(hyper_table(Hypers()), tuned), Random(f"members.{seed}")
    specs = [spec for spec in table.values() if spec.tuned]
    return ["--pbt.start-values", *(",".join(_drawn(spec, rng) for spec in specs) for _ in range(members))]


def _drawn(spec: HyperSpec, rng: Random) -> str:
    return f"{spec.name}={spec.hold(float(f'{sample_prior(spec, rng):.6g}')):.6g}"


def first_drawn(tuned: Sequence[str], seed: int, _members: int) -> list[str]:
    """Return options that draw the first member's values: PBT draws the others, and leaves this one at the defaults."""
    return drawn_defaults(seed, tuned)


def nothing(_seed: int, _members: int) -> tuple[str, ...]:
    """Return no options: the recipe's defaults."""
    return ()


def compared_every(frames: int, episodes: int) -> tuple[str, ...]:
    """Return the options of all population-based methods: when members are compared, by how many episodes."""
    return (
        *("--pbt.period-frames", f"{frames}", "--pbt.start-frames", f"{frames}"),
        *("--pbt.objective-episodes", f"{episodes}", "--pbt.exploit", "truncation"),
        *("--pbt.replace-fraction", "0.25", "--pbt.replace-gap", "0"),
    )


# -- Pendulum ---------------------------------------------------------------------------------------------------

SIX = ("learning_rate", "entropy_coef", "clip_ratio", "gamma", "gae_lambda", "max_grad_norm")


def pendulum() -> Experiment:
    """Six values, two methods, many seeds."""
    every = compared_every(8_000, 20)
    return Experiment(
        "Pendulum-v1, 12 members x 80,000 frames",
        seeds=24,
        options=(
            *("--env", "gym/Pendulum-v1", "--mode", "serial", "--no-figures"),
            *("--learner.lr-schedule", "constant", "--pbt.tune", *SIX),
        ),
        arms={
            "pbt": Arm(
                ("--controller", "pbt", *every, "--pbt.explore", "resample"),
                12,
                80_000,
                partial(first_drawn, SIX),
            ),
            "random": Arm(("--controller", "random"), 12, 80_000, partial(first_drawn, SIX)),
            "ipbt": Arm(
                ("--controller", "ipbt", *compared_every(4_000, 20), "--pbt.explore", "resample"),
                12,
                80_000,
                partial(first_drawn, SIX),
            ),
        },
        games=20,
        collapsed=-1000.0,
    )


# -- CartPole: all rules ----------------------------------------------------------------------------------------

THREE = ("learning_rate", "entropy_coef", "clip_ratio")


def cartpole() -> Experiment:
    """All rules side by side, and what is left of PBT if it copies only weights or only values."""
    members, frames, phases = 8, 10_000, 4
    every = compared_every(1_250, 20)
    pbt = ("--controller", "pbt", *every, "--pbt.explore", "resample")
    search = ("--slots", f"{members}", "--search.phases", f"{phases}", "--search.eviction-rate")

    def arm(*options: str, members: int = members) -> Arm:
        return Arm(options, members, frames, partial(drawn_members, THREE))

    return Experiment(
        "CartPole-v1, 80,000 frames in total",
        seeds=20,
        options=(
            *("--env", "gym/CartPole-v1", "--mode", "serial", "--no-figures", "--learner.batch", "512"),
            *("--learner.lr-schedule", "constant", "--pbt.tune", *THREE),
        ),
        arms={
            "random": arm("--controller", "random"),
            "halving": arm("--controller", "successive-halving", *search, "0.5", members=17),
            "hypertrick": arm("--controller", "hypertrick", *search, "0.25", members=12),
            "pbt": arm(*pbt),
            "mf-pbt": arm(
                *("--controller", "mf-pbt", "--pbt.frequencies", "1", "4", *every),
                *("--pbt.explore", "resample"),
            ),
            "pb2": arm("--controller", "pbt", *every, "--pbt.explore", "pb2"),
            "ipbt": arm("--controller", "ipbt", *every, "--pbt.explore", "resample"),
            "pbt, weights only": arm(*pbt, "--pbt.copy", "weights"),
            "pbt, values only": arm(*pbt, "--pbt.copy", "hypers"),
        },
        games=20,
        collapsed=50.0,
    )


# -- Memory -----------------------------------------------------------------------------------------------------


def unroll() -> Experiment:
    """The values that the PBT paper tunes on DeepMind Lab, the unroll among them, where memory needs a long one."""
    tuned = ("learning_rate", "entropy_coef", "unroll=2:36")

    def arm(*options: str) -> Arm:
        return Arm(options, 6, 30_000, partial(drawn_members, tuned))

    return Experiment(
        "toy/memory, 16 steps between cue and question, GRU: 6 members x 30,000 frames",
        seeds=10,
        options=(
            *("--env", "toy/memory?delay=15&size=2", "--mode", "serial", "--no-figures"),
            *("--units-per-actor", "1", "--envs-per-unit", "32", "--learner.rollout", "36"),
            *("--hypers.unroll", "36", "--learner.batch", "1152", "--learner.epochs", "4"),
            *("--learner.minibatches", "4", "--model.core", "gru", "--hypers.gamma", "0.9"),
            *("--learner.lr-schedule", "constant", "--pbt.tune", *tuned),
        ),
        arms={
            "pbt": arm("--controller", "pbt", *compared_every(3_000, 100), "--pbt.explore", "resample"),
            "random": arm("--controller", "random"),
        },
        games=100,
        collapsed=0.6,
    )


# -- Atari ------------------------------------------------------------------------------------------------------


def atari() -> Experiment:
    """A real game: PBT, independent draws, and the recipe's defaults with all frames in one policy."""
    members, frames = 8, 100_000
    return Experiment(
        "Breakout, 800,000 frames in total",
        seeds=5,
        options=(
            *("--env", "atari/breakout", "--mode", "serial", "--no-figures"),
            *("--envs-per-unit", "4", "--learner.rollout", "128", "--hypers.unroll", "128"),
            *("--save-every-seconds", "60"),
        ),
        arms={
            "pbt": Arm(
                (
                    *("--controller", "pbt", *compared_every(12_500, 10), "--pbt.explore", "resample"),
                    *("--learner.lr-schedule", "constant", "--pbt.tune", *THREE),
                ),
                members,
                frames,
                partial(drawn_members, THREE),
            ),
            "random": Arm(
                ("--controller", "random", "--learner.lr-schedule", "constant", "--pbt.tune", *THREE),
                members,
                frames,
                partial(drawn_members, THREE),
            ),
            "defaults": Arm(("--pbt.no-enabled",), 1, members * frames, nothing),
        },
        games=20,
        collapsed=2.0,
    )


EXPERIMENTS: Mapping[str, Callable[[], Experiment]] = {
    "pendulum": pendulum,
    "cartpole": cartpole,
    "unroll": unroll,
    "atari": atari,
}
