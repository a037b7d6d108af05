"""Arms (compared methods) of an experiment, and the commands of their runs.

    common options + options of the arm + seed + initial values of this seed -> `pbt-rl train ...`

Without --pbt.start-values, member i of a seed begins with the same sample from the priors in all arms except
`defaults`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pbt_rl.config import Config
from pbt_rl.config.command import Layers, parse_train
from pbt_rl.controllers.events import Comparison
from pbt_rl.controllers.hypers import HyperSpec, sample_prior
from pbt_rl.controllers.lineage import Noise
from pbt_rl.controllers.lookup import controller_entry, texts
from pbt_rl.controllers.tuning import chosen
from pbt_rl.envs.lookup import probe
from pbt_rl.errors import ConfigError, environment_code, require
from pbt_rl.experiments.jobs import GIVEN_BY_THE_SWEEP
from pbt_rl.options.declare import table
from pbt_rl.options.names import meant
from pbt_rl.options.words import split
from pbt_rl.record.journal import journal_events
from pbt_rl.record.saved import read_config
from pbt_rl.run.resolved import value_table
from pbt_rl.run.train import resolve

OPTIONS = table(Config)
GIVEN_HERE = (*GIVEN_BY_THE_SWEEP, "train-for-seconds", "stop-at-objective")
INSTEAD = {
    "control": "the arm random is the control group",
    "hours": "arms are compared at equal frames: give --train-for-frames",
    "controller": "each arm has its own controller: add one with --arm NAME, such as --arm mf-pbt",
}
"""Option that the user must not give (`controller`: except in an arm) -> reason or remedy in the error message."""
OF_ALL_ARMS = ("env", "env-option", "config", "train-for-frames")
"""Options that must be equal in all arms, and cannot be given for a single arm."""
BASELINE = "random"
"""Name of the arm with which all other arms are compared."""
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "pbt": ("--controller", "pbt"),
    "random": ("--controller", "random"),
    "defaults": ("--pbt.no-enabled",),
}
"""Name of a built-in arm -> its options."""
COMPARISONS = 25
"""Default number of periods in a run."""


@dataclass(frozen=True)
class Arm:
    """Compared method. options: options of `pbt-rl train` that this arm adds to the common options."""

    name: str
    options: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Names of the arm's options."""
        return split(self.options).names


def read_arms(given: Sequence[str], without: Sequence[str] = ()) -> list[Arm]:
    """Return the built-in arms except `without`, followed by the given arms.

    given: NAME:OPTIONS, or the name of a controller.
    Raises ConfigError for an invalid arm, for an invalid name in `without`, or if only the baseline is left.
    """
    for name in without:
        if name not in BUILT_IN or name == BASELINE:
            others = " and ".join(other for other in BUILT_IN if other != BASELINE)
            raise ConfigError(f"--without {name} cannot be used: give {others}")
    arms = {name: Arm(name, options) for name, options in BUILT_IN.items()}
    for text in given:
        name, colon, options = text.partition(":")
        rule = "begin with a name of lower-case letters, digits and '-', such as short:'--pbt.period-frames 4000'"
        require(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name) is not None, "arm", text, rule)
        require(name not in arms, "arm", text, f"an arm {name} exists already; use another name")
        if colon:
            try:
                arms[name] = Arm(name, tuple(shlex.split(options)))
            except ValueError as error:
                raise ConfigError(f"--arm {text} cannot be used: {error}") from None
            check_names(arms[name].names, f"in --arm {name}", ("controller",))
            for word in arms[name].names:
                if word in OF_ALL_ARMS:
                    raise ConfigError(f"--{word} cannot be used in --arm {name}: give it for all arms")
        elif name in texts():
            arms[name] = Arm(name, ("--controller", name))
        else:
            known = f"give a controller ({', '.join(texts())}), or options as {name}:'--pbt.exploit t-test'"
            raise ConfigError(f"--arm {name} cannot be used: {meant('arm', name, texts())}{known}")
    left = [arm for arm in arms.values() if arm.name not in without]
    require(len(left) > 1, "without", " ".join(without), f"keep an arm besides {BASELINE}")
    return left


def check_names(names: Sequence[str], where: str, allowed: Sequence[str] = ()) -> None:
    """Raise ConfigError if `names` contains an option of GIVEN_HERE, or an option of INSTEAD that is not in `allowed`.

    names: options that the user gave. where: text for the message.
    """
    for name in names:
        why = INSTEAD.get(name, "") if name not in allowed else ""
        if name in GIVEN_HERE:
            why = "runs have the seeds 0 to --seeds minus 1 and a fixed number of frames"
        if why:
            raise ConfigError(f"--{name} cannot be used {where}: {why}")


@dataclass(frozen=True)
class Task:
    """Training task of all arms. common: options of `pbt-rl train` that all arms share, without seed and name."""

    common: tuple[str, ...]
    config: Config

    @classmethod
    def read(cls, common: Sequence[str]) -> Task:
        """Parse and check the options that all arms share.

        Raises ConfigError for invalid options, and EnvSetupError if the environment cannot be made.
        """
        layers = Layers.read(split(common))
        if "hours" in layers.given:  # before `config` derives other options from it
            check_names(["hours"], "with pbt-rl prove")
        config = layers.config()
        if "train_for_frames" not in layers.given:
            raise ConfigError(
                "--train-for-frames is missing: give the frames of each member, such as --train-for-frames 1M; arms "
                "have equal frames"
            )
        # Compare with the defaults, because --config may be a run's config.json, which contains every option.
        differs = {
            "train-for-seconds": config.train_for_seconds > 0,
            "stop-at-objective": config.stop_at_objective is not None,
            "controller": config.controller != Config.controller,
            "control": config.members > config.num_policies,
        }
        check_names([name for name, given in differs.items() if given], "with pbt-rl prove")
        few = "give 2 or more, because PBT needs a population"
        require(config.num_policies > 1, "num-policies", config.num_policies, few)
        require(
            config.pbt.enabled, "pbt.enabled", False, "leave it out, because pbt would equal the arm random"
        )
        with environment_code(config.env):
            agents = probe(config.env, config.env_options).agents
        why = (
            f"its {agents} agents would play against themselves, so every arm would have the same score; see "
            "docs/reference/several-agents.md for ratings"
        )
        require(agents == 1, "env", config.env, why)
        return cls(tuple(common), config)

    def command(self, arm: Arm, seed: int) -> list[str]:
        """Return the arguments of `pbt-rl` for one run. The name of the run, and its folder, are left out."""
        members, frames = self.config.num_policies, self.config.train_for_frames
        replaced = {name for name in arm.names if name in OPTIONS and OPTIONS[name].is_list}
        if arm.name == "defaults":
            replaced |= {"pbt.start-values", "init-from"}
        words = ["train", *split(self.common).without(replaced).words, *arm.options]
        if arm.name == "defaults":
            words += [f"--init-from={source}" for source in self.config.init_from[:1]]
            budget = ["--train-for-frames", str(members * frames)]
            return [*words, "--num-policies", "1", *budget, "--seed", str(seed)]
        layers = Layers.read(split(words[1:]))
        period = max(1, frames // COMPARISONS)
        if "pbt.period_frames" in layers.given:
            period = layers.values["pbt.period_frames"]
        else:
            words += ["--pbt.period-frames", str(period)]
        if "pbt.start_frames" not in layers.given:  # the recipe's value may exceed the run's frames
            words += ["--pbt.start-frames", str(period)]
        config = parse_train(words[1:])
        if config.pbt.start_values:
            return [*words, "--seed", str(seed)]
        return [*words, "--seed", str(seed), "--pbt.start-values", *self.drawn(seed, config.num_policies)]

    def check(self, arm: Arm) -> None:
        """Raise ConfigError or EnvSetupError if an arm cannot be trained.

        Also raise ConfigError if the arm sets start values that have no effect, because all arms have equal ones.
        """
        tuned = {spec.name.replace("_", "-") for spec in self._tuned()}
        for name in arm.names:
            of_start = name == "pbt.prior" or name.removeprefix("hypers.") in tuned
            if of_start and "pbt.start-values" not in arm.names and arm.name not in BUILT_IN:
                raise ConfigError(
                    f"--{name} cannot be used in --arm {arm.name}: it has no effect, because members begin with equal "
                    "values in all arms. Give it for all arms, or give --pbt.start-values in this arm"
                )
        try:
            config = parse_train(self.command(arm, 0)[1:])
            resolve(config).controller().initial(config.members)
        except ConfigError as error:
            raise ConfigError(f"the arm {arm.name} cannot be trained: {error}") from error

    def _tuned(self) -> list[HyperSpec]:
        config = self.config
        with environment_code(config.env):
            shaping = probe(config.env, config.env_options).shaping
        table = chosen(value_table(config.with_declared_hypers(), shaping), config.pbt.tune, config.pbt.prior)
        return [spec for spec in table.values() if spec.tuned]

    def drawn(self, seed: int, members: int) -> list[str]:
        """Return the initial values of each member, as texts such as `learning_rate=0.001,gamma=0.99`.

        The values of member i do not depend on the number of members.
        """
        rng, specs = Random(f"members.{seed}"), self._tuned()
        return [",".join(_drawn(spec, rng) for spec in specs) for _ in range(members)]


def _drawn(spec: HyperSpec, rng: Random) -> str:
    return f"{spec.name}={spec.hold(float(f'{sample_prior(spec, rng):.6g}')):.6g}"


# -- warnings about an arm ----------------------------------------------------------------------------------


def too_short(run: Path) -> str:
    """Return a warning if members were compared in less than half of a run's periods. Otherwise return "".

    Only runs with the ready rule `synchronous` are checked. Runs with evaluations before comparisons, or with growing
    periods, are not checked, because they have fewer comparisons than the budget has periods.
    """
    config = read_config(run)
    pbt = config.pbt
    compares = controller_entry(config.controller).compares and pbt.enabled and config.num_policies > 1
    if not compares or pbt.ready != "synchronous" or pbt.period_growth > 1 or pbt.evaluate_episodes > 0:
        return ""
    return said(
        config, [len(event.decisions) for event in journal_events(run) if isinstance(event, Comparison)]
    )


def lucky(runs: Sequence[Path]) -> str:
    """Return a warning if most replacements in the runs of an arm are possibly due to chance. Otherwise return ""."""
    from pbt_rl.report.verdict import mostly_luck, said_of_luck  # noqa: PLC0415 - loads matplotlib

    noise = Noise()
    for run in runs:
        for event in journal_events(run):
            noise.take(event)
    return said_of_luck(noise, "--pbt.period-frames", in_python=False) if mostly_luck(noise) else ""


def said(config: Config, compared: Sequence[int]) -> str:
    """Return the warning of `too_short`, or "". compared: number of members in each comparison."""
    pbt, frames = config.pbt, config.train_for_frames
    first = max(pbt.start_frames, pbt.period_frames)
    due = (frames - first) // pbt.period_frames  # without the last comparison: the run may end before it
    held = sum(compared) / config.num_policies
    if 2 * held >= due:
        return ""
    least = f"{_up(frames / held):,}" if held else f"more than {frames:,}"
    return (
        f"each member was compared {held:.3g} times instead of about {due}: --pbt.period-frames {pbt.period_frames:,} "
        f"is too short. Between two comparisons a member needs {pbt.min_episodes} complete episodes, and at least one "
        f"episode in each environment. Give {least}{' or more' if held else ''}, or fewer environments "
        "(--envs-per-vector-env, --actors, or --rows of a simulator), under another --name"
    )


def _up(frames: float) -> int:
    """Round up to two significant digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(frames)) - 1)
    return math.ceil(frames / unit) * unit
