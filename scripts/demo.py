"""Demonstrate population based training on any machine: a run on CartPole, and a run on Atari.

    make demo
    make demo ARGS="--seed 1 --name x"   # options of `pbt-rl train`, for both runs

A run ends when its best member is clearly above the random policy, after at least three comparisons. The time limits
are 90 s for CartPole and 270 s for Atari.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.config.command import parse_train
from pbt_rl.controllers.decisions import Decision, PopulationReport
from pbt_rl.display.view import RunView
from pbt_rl.errors import ConfigError
from pbt_rl.run.callbacks import Callbacks, Stop
from pbt_rl.run.train import train

COMPARISONS = 3
OPTIONS = (
    "--num-policies 4 --overwrite --pbt.ready timed --pbt.objective-episodes 20 --pbt.replace-errors 1 "
    "--pbt.mutation-rate 0.5"
)


@dataclass(frozen=True)
class Part:
    """One run. goal: objective at which the run ends. chance: objective of the random policy."""

    title: str
    name: str
    goal: float
    chance: float
    options: str


PARTS = (
    Part(
        "CartPole: three of four members begin with a poor learning rate",
        "demo-cartpole",
        475,
        22,
        "--env gym/CartPole-v1 --envs-per-vector-env 4 --train-for-seconds 90 --pbt.start-seconds 3 "
        "--pbt.period-seconds 3 --pbt.tune learning_rate=1e-5:1e-2 entropy_coef --pbt.prior learning_rate=1e-5:1e-4 "
        "--pbt.explore resample --final-episodes 10",
    ),
    Part(
        "Up'n Down, from 84 x 84 pixels: an Atari game that is learned early",
        "demo",
        1500,
        500,
        "--env atari/up_n_down --envs-per-vector-env 2 --train-for-seconds 270 --pbt.start-seconds 25 "
        "--pbt.period-seconds 15 --pbt.min-episodes 2 --model.encoder a3c --model.hidden 128 --learner.epochs 2 "
        "--final-episodes 8",
    ),
)


@dataclass
class Watch:
    """Callbacks that end a run after COMPARISONS comparisons if the goal is reached."""

    part: Part
    comparisons: int = 0
    replaced: set[int] = field(default_factory=set)

    def on_decision(self, report: PopulationReport, decisions: Sequence[Decision]) -> None:
        """Count comparisons, and record the replaced members."""
        del report
        self.comparisons += 1
        self.replaced |= {d.member for d in decisions if type(d).__name__ == "Replace"}

    def on_report(self, view: RunView) -> Stop | None:
        """End the run if the best member has reached the goal after enough comparisons.

        A member counts when each of its environments has ended an episode. With fewer episodes, a mean may be high by
        chance.
        """
        known = [m.objective for m in view.members if m.objective is not None and m.complete]
        if self.comparisons >= COMPARISONS and max(known, default=self.part.chance) >= self.part.goal:
            return Stop(f"the best member scores {max(known):.4g}")
        return None


def show(part: Part, words: Sequence[str]) -> tuple[Config, str]:
    """Train one run. Return its config and a sentence about its result."""
    print(f"\n== {part.title}\n", flush=True)
    config = parse_train([*OPTIONS.split(), *part.options.split(), "--name", part.name, *named(part, words)])
    watch = Watch(part)
    train(config, Callbacks(on_report=watch.on_report, on_decision=watch.on_decision))
    return config, sentence(config, watch)


def named(part: Part, words: Sequence[str]) -> list[str]:
    """Return the user's options. A given --name replaces "demo" in the name of the part."""
    own = list(words)
    for at, word in enumerate(own):
        if word.startswith("--name="):
            own[at] = part.name.replace("demo", word, 1)
        elif word == "--name" and at + 1 < len(own):
            own[at + 1] = part.name.replace("demo", own[at + 1], 1)
    return own


def sentence(config: Config, watch: Watch) -> str:
    """Describe the result of a run: its final evaluation, or else its objectives in training."""
    folder = config.out / str(config.name)
    summary = json.loads((folder / "summary.json").read_text())
    members = summary["members"]
    scores = [m["final"]["mean"] for m in members if m.get("final")]
    scores = scores or [m["objective"] for m in members if m["objective"] is not None]
    seconds = summary["training_seconds"]
    if not scores:
        return f"{config.env}: no episode ended in {seconds:.0f} s; this machine is too busy for the demo."
    chance = summary["random_play"] if summary["random_play"] is not None else watch.part.chance
    return (
        f"{config.env}: from {chance:.3g} (random policy) to {max(scores):.4g} in {seconds:.0f} s of training; "
        f"changed copies of better members replaced {len(watch.replaced)} of {config.num_policies} members in "
        f"{watch.comparisons} comparisons."
    )


def main() -> int:
    """Train both runs. Return the exit code."""
    words, shown, last = sys.argv[1:], [], Path()
    try:
        for part in PARTS:
            config, said = show(part, words)
            shown.append(said)
            last = config.out / str(config.name)
    except ConfigError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print("\n" + "\n".join(shown))
    print("\nTo type these commands, first: . .venv/bin/activate")
    print(f"tensorboard --logdir {last.parent}  # the curves of both runs")
    print(f"pbt-rl eval {last} --video demo.mp4  # a film of the best member")
    return 0


if __name__ == "__main__":
    sys.exit(main())
