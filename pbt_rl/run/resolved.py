"""Resolved run: config, environment, plan, table of values and controller, before processes start."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.config import Config, check_divergence
from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerContext
from pbt_rl.controllers.hypers import HyperSpec, Values, hyper_table, shaping_table, with_shaping
from pbt_rl.controllers.lookup import controller_entry
from pbt_rl.controllers.ready import COMPARE_NEWEST
from pbt_rl.controllers.starts import started
from pbt_rl.controllers.state import restore_state
from pbt_rl.controllers.tuning import chosen
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.lookup import EnvOptions, probe
from pbt_rl.errors import environment_code, require
from pbt_rl.learner.build import sees_pictures
from pbt_rl.learner.own_loss import check_network
from pbt_rl.learner.simulators import plan as rows_of_simulators
from pbt_rl.plan import Machine, Plan, make_plan
from pbt_rl.play.evaluation import evaluations
from pbt_rl.population.matchups import run_matchups as matchups
from pbt_rl.population.matchups.run_matchups import ratings_of
from pbt_rl.population.population import Population
from pbt_rl.record.journal import journal_events
from pbt_rl.run import control


def build_controller(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Build the controller of `--controller`, with the wrappers that other options require.

    table: name -> properties of a value, from `value_table`.
    Raises ConfigError, for example for an unknown name in `--pbt.tune`.
    """
    entry, pbt = controller_entry(config.controller), config.pbt
    tuned = chosen(table, pbt.tune, pbt.prior)
    require(
        config.learner.lr_schedule != "kl-adaptive" or not tuned["learning_rate"].tuned,
        "learner.lr-schedule",
        "kl-adaptive",
        "it overrides the learning rate that --pbt.tune learning_rate tunes: use constant or linear, or tune other "
        "values",
    )
    require(
        not config.controller_option or ":" in config.controller,
        "controller-option",
        " ".join(config.controller_option),
        f"it is for custom controllers (module:Class); {config.controller} has options under --pbt or --search",
    )
    controller = entry.build(
        ControllerContext(
            table=tuned,
            seed=seed,
            members=config.num_policies,
            slots=min(config.slots or config.num_policies, config.num_policies),
            budget_frames=config.train_for_frames,
            options=config,
            journal=journal_events,
            settings=config.controller_option,
        )
    )
    controller = started(controller, config, entry, tuned)
    return control.around(controller, config, entry, tuned)


def resumed_controller(
    config: Config, table: Mapping[str, HyperSpec], seed: int, state: Any, values: Values
) -> Controller:
    """Build the controller of a resumed run or of an audit.

    state: saved state of the controller (`save_state`).
    values: values that the user has changed for all members. Values that are not tuned are replaced in `state`.
    Raises the ConfigErrors of `build_controller`. Raises ValueError if the state does not fit the controller, for
    example because the class of a rule has changed.
    """
    controller = build_controller(config, table, seed)
    controller.initial(config.members)  # only for the number of members: the values are in the state
    tuned = chosen(table, config.pbt.tune, config.pbt.prior)
    fixed = {name: value for name, value in values.items() if not tuned[name].tuned}
    restore_state(controller, _with(fixed, state) if fixed else state, "controller")
    return controller


def _with(values: Values, state: Any) -> Any:
    """Return a copy of a state of JSON types, in which `values` replace the entries with equal names at all depths."""
    if isinstance(state, list):
        return [_with(values, part) for part in state]
    if not isinstance(state, Mapping):
        return state
    return {name: values[name] if name in values else _with(values, part) for name, part in state.items()}


@dataclass(frozen=True)
class ResolvedRun:
    """Config of a run, with environment, table of values, and plan for a machine.

    `resolve` detects most user errors.
    """

    config: Config
    options: EnvOptions
    spec: EnvSpec
    plan: Plan
    table: dict[str, HyperSpec]
    spread: bool = False
    """True if packs are on other machines, which the cluster may add and remove during training."""
    warnings: tuple[str, ...] = ()
    """Warnings about the network."""

    @classmethod
    def resolve(cls, config: Config, machine: Machine) -> ResolvedRun:
        """Probe the environment, and make the plan.

        Raises ConfigError if options do not fit, and EnvSetupError if the environment cannot be made.
        """
        config = config.with_declared_hypers()
        check_divergence(config)
        options = config.env_options
        with environment_code(config.env):
            spec = probe(config.env, options)
        lay_out = rows_of_simulators.lay_out if spec.simulator else None
        plan = make_plan(config, machine, spec.agents, lay_out, pictures=sees_pictures(config, spec))
        for check in (control.check, evaluations.check, matchups.check, rows_of_simulators.check):
            check(config, spec, plan)
        # Detect an unusable network before processes start.
        warnings = check_network(config, spec, [pack.device for pack in plan.packs])
        return cls(config, options, spec, plan, value_table(config, spec.shaping), warnings=warnings)

    @property
    def tuned(self) -> dict[str, HyperSpec]:
        """Table of values, with the changes of --pbt.tune and --pbt.prior. Raises ConfigError if they do not fit."""
        return chosen(self.table, self.config.pbt.tune, self.config.pbt.prior)

    def controller(self) -> Controller:
        """Build a new controller of this run."""
        return build_controller(self.config, self.table, self.config.seed)

    def population(self, initial: list[Values]) -> Population:
        """Build the initial population. initial: values of the members."""
        config, spec = self.config, self.spec
        entry = controller_entry(config.controller)
        return Population(
            initial,
            config.pbt.objective_episodes,
            spec.frame_skip,
            ratings=ratings_of(config, spec),
            tasks=spec.tasks,
            task_cap=spec.task_cap,
            min_rounds=config.pbt.min_episodes,
            compares_newest=entry.compares and config.pbt.ready in COMPARE_NEWEST,
            environments=self.plan.environments_of,
            timeout_frames=entry.timeout_frames(config, config.train_for_frames),
        )


def value_table(
    config: Config, shaping: Mapping[str, float], recorded: Collection[str] | None = None
) -> dict[str, HyperSpec]:
    """Build the table of a member's values: hyperparameters of the algorithm, and shaping.

    shaping: defaults of the environment.
    recorded: names of the values in a recorded run. None: use the hyperparameters that the algorithm reads.
    Raises ConfigError for an unknown name in --shaping.
    """
    every = hyper_table(config.hypers)
    read = (
        config.algorithm.reads(use_vtrace=config.uses_vtrace)
        if recorded is None
        else {*recorded, "learning_rate"}
    )
    table = {name: spec for name, spec in every.items() if name in read}
    if "unroll" in table:
        rollout, unroll = float(config.learner.rollout), table["unroll"]
        table["unroll"] = dataclasses.replace(
            unroll,
            low=min(unroll.low, rollout),
            high=rollout,
            default=min(unroll.default, rollout),
            legal=(unroll.limits[0], rollout),
        )
    if config.learner.lr_schedule == "kl-adaptive":  # the schedule would undo changes of the controller
        table["learning_rate"] = dataclasses.replace(table["learning_rate"], tuned=False)
    return table | shaping_table(with_shaping(shaping, config.shaping))
