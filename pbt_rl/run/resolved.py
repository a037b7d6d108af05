"""A run before any process starts: its config, environment, plan and table of values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from pbt_rl.config import Config, check_schedule_of_learning_rate
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.registry import EnvOptions, has_pictures, probe
from pbt_rl.errors import environment_code, require
from pbt_rl.learner.build import check_network
from pbt_rl.learner.sees import network_sees
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.hypers import HyperSpec, Values, hyper_table, shaping_table
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.tuning import chosen
from pbt_rl.plan import Machine, Plan, make_plan
from pbt_rl.play.filming import film_maker
from pbt_rl.population.population import Population
from pbt_rl.run.controllers import build_controller
from pbt_rl.run.opponents import opponents

OF_ALL_OPTIMIZERS = ("learning_rate", "max_grad_norm")


@dataclass(frozen=True)
class ResolvedRun:
    """Everything that follows from a config on a machine. To make it finds the user's mistakes, as far as possible."""

    config: Config
    options: EnvOptions
    spec: EnvSpec
    plan: Plan
    table: dict[str, HyperSpec]
    spread: bool = False
    """Its packs are on other machines, which come and go while it trains."""
    copy_seconds: float = 0.0
    """Copies of all members are kept here that are at most this old; 0: none."""

    @classmethod
    def resolve(cls, config: Config, machine: Machine) -> ResolvedRun:
        """Probe the environment and plan. Raises ConfigError or EnvSetupError."""
        config = config.with_declared_hypers()
        check_schedule_of_learning_rate(config)
        options = config.env_options
        with environment_code(config.env):
            spec = probe(config.env, options)
        plan = make_plan(config, machine, spec.seats)
        opponents().check(config, spec, plan)
        check_evaluation(config, spec)
        # A model that cannot be used shows here.
        check_network(config, spec, [pack.device for pack in plan.packs])
        return cls(config, options, spec, plan, value_table(config, spec.shaping))

    def tuned_table(self) -> dict[str, HyperSpec]:
        """Return the table with the user's choice of tuned values, bounds and priors. Raises ConfigError."""
        return chosen(self.table, self.config.pbt.tune, self.config.pbt.prior)

    def controller(self) -> Controller:
        """Build the controller of this run, unused."""
        return build_controller(self.config, self.table, self.config.seed)

    def population(self, initial: list[Values]) -> Population:
        """Build the population of this run, before any report. initial: the values of its members."""
        config, spec = self.config, self.spec
        return Population(
            initial,
            config.pbt.objective_episodes,
            spec.frame_skip,
            judged_by=opponents().judged_by(config),
            ratings=opponents().ratings(config) if spec.seats > 1 else None,
            tasks=spec.tasks,
            task_cap=spec.task_cap,
            min_rounds=config.pbt.min_episodes,
            environments=self.plan.environments_of,
            patience_frames=controller_entry(config.controller).patience_frames(
                config, config.train_for_frames
            ),
        )


def tried_network(config: Config, spec: EnvSpec) -> list[str]:
    """Make the network of a run, and return what it sees. Raises ConfigError."""
    check_network(config, spec, ["cpu"])
    return network_sees(config, spec)


def value_table(config: Config, shaping: Mapping[str, float]) -> dict[str, HyperSpec]:
    """Return name -> spec of every value of a member. shaping: the environment's, with its defaults.

    What no loss of the algorithm reads is not tuned by default (of one of the user's own this is not known).
    """
    table = hyper_table(config.hypers) | shaping_table(shaping)
    rollout, unroll = float(config.learner.rollout), table["unroll"]
    table["unroll"] = dataclasses.replace(
        unroll,
        low=min(unroll.low, rollout),
        high=rollout,
        default=min(unroll.default, rollout),
        legal=(unroll.limits[0], rollout),
    )
    if config.learner.lr_schedule == "kl-adaptive":  # its factor would undo what a controller changes
        table["learning_rate"] = dataclasses.replace(table["learning_rate"], tuned=False)
    if ":" not in config.algo:  # an audit imports nothing that a run names
        read = {*OF_ALL_OPTIMIZERS, *config.algorithm.loss_hypers}
        for name in hyper_table(config.hypers).keys() - read:
            table[name] = dataclasses.replace(table[name], tuned=False)
    return table


def check_evaluation(config: Config, spec: EnvSpec) -> None:
    """Check that games beside training mean something, and that they can be filmed. Raises ConfigError."""
    require(
        not config.evaluate_every_frames or spec.seats == 1,
        "evaluate-every-frames",
        config.evaluate_every_frames,
        f"a score of {config.env} means little without its opponents: leave it out, and compare members by "
        "`pbt-rl eval --against`",
    )
    if config.evaluate_video:
        film_maker("evaluate-video").check_clips()
        require(
            has_pictures(config.env, config.env_options),
            "evaluate-video",
            "true",
            f"{config.env} has no pictures: leave it out",
        )
