"""A run's folder and its fixed facts: what is decided before any process starts."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.registry import EnvOptions, probe
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.learner import build_net
from pbt_rl.pbt.controllers import build_controller
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.hypers import HyperSpec, hyper_table, shaping_table
from pbt_rl.topology import Machine, Plan, make_plan

TURN_ROLLOUTS = 20
"""A turn of fewer rollouts of every unit loses more than a share in so many of its frames."""


@dataclass(frozen=True)
class Facts:
    """All that follows from a config on a machine. Making it finds every mistake of the user's that can be found."""

    config: Config
    options: EnvOptions
    spec: EnvSpec
    plan: Plan
    table: dict[str, HyperSpec]

    @classmethod
    def find(cls, config: Config, machine: Machine) -> Facts:
        """Probe the environment and plan. Raises ConfigError or EnvSetupError."""
        options = config.env_options
        with environment_code(config.env):
            spec = probe(config.env, options)
        plan = make_plan(config, machine, spec.seats)
        _check_matchup(config, spec, plan)
        build_net(spec, config.model)  # a model that cannot be used shows here
        return cls(config, options, spec, plan, value_table(config, spec.shaping))

    def controller(self) -> Controller:
        """Build the controller of this run, unused."""
        return build_controller(self.config, self.table, self.config.seed)


def value_table(config: Config, shaping: Mapping[str, float]) -> dict[str, HyperSpec]:
    """Name -> spec of every value of a member. shaping: the environment's, with its defaults."""
    table = hyper_table(config.hypers) | shaping_table(shaping)
    rollout, unroll = float(config.learner.rollout), table["unroll"]
    table["unroll"] = dataclasses.replace(
        unroll, low=min(unroll.low, rollout), high=rollout, default=min(unroll.default, rollout)
    )
    return table


def _check_matchup(config: Config, spec: EnvSpec, plan: Plan) -> None:
    """Whether members meet, where they are ranked by whom they beat. Raises ConfigError."""
    objective = config.matchup.objective
    if objective == "return":
        return
    if spec.seats == 1:
        reason, remedy = f"{config.env} has one agent, and nobody to beat", "leave it out"
    elif len(plan.packs) > 1:
        reason = f"members of different devices never meet, and there are {len(plan.packs)}"
        remedy = "use one device (--devices), or --matchup.objective return"
    elif plan.packs[0].places == 1:
        reason = "one policy is there at a time, and it plays itself"
        remedy = "use more policies (--num-policies, --resident), or --matchup.objective return"
    else:
        return
    raise ConfigError(f"--matchup.objective {objective} cannot be used: {reason}: {remedy}")


def describe_plan(facts: Facts) -> list[str]:
    """Say in words who will run where."""
    spec, plan, config = facts.spec, facts.plan, facts.config
    resident = sum(pack.places for pack in plan.packs)
    turns = f" ({resident} resident at a time)" if resident < config.num_policies else ""
    first_line = (
        f"{config.env}: {config.num_policies} policies{turns}, {config.algo}, {config.mode}; "
        f"{plan.actors} actors, {plan.environments // spec.seats} environments"
        f"{f' of {spec.seats} seats' if spec.seats > 1 else ''} on {plan.cpus} cores; "
        f"1 step = {spec.frame_skip} frame{'s' if spec.frame_skip > 1 else ''}"
    )
    lines = [first_line]
    for number, pack in enumerate(plan.packs):
        steps = pack.units_per_batch * pack.envs_per_policy * config.learner.rollout
        lines.append(
            f"learner {number} on {pack.device}: members {_ids(pack.members)}"
            f"{'' if pack.places == len(pack.members) else f' in {pack.places} place(s)'}; "
            f"{pack.actors} actors x {pack.units_per_actor} units x {pack.rows} rows "
            f"({pack.envs_per_policy} a policy); batch {steps} steps a policy; {pack.threads} thread(s)"
        )
    return [*lines, *_notes(facts)]


def _notes(facts: Facts) -> list[str]:
    """What the user may not have meant."""
    config, notes = facts.config, []
    if facts.spec.seats > 1:
        notes.append(_matchup_note(facts))
    pbt = config.controller in ("pbt", "mf-pbt") and config.pbt.enabled and config.num_policies > 1
    first_round = max(config.pbt.start_frames, config.pbt.period_frames)
    if pbt and first_round >= config.train_for_frames:
        notes.append(
            f"note: PBT compares members first at {first_round:,} frames each, and this run ends at "
            f"{config.train_for_frames:,}: lower --pbt.start-frames and --pbt.period-frames to see it at work"
        )
    if config.searches:
        return notes
    for pack in facts.plan.packs:
        lost = pack.units * pack.envs_per_policy * config.learner.rollout * facts.spec.frame_skip
        if pack.places < len(pack.members) and config.turn_frames < TURN_ROLLOUTS * lost:
            notes.append(
                f"note: who leaves a place loses its unfinished rollouts, up to {lost:,} frames, and a turn is "
                f"{config.turn_frames:,}: raise --turn-frames"
            )
            break
    return notes


def _matchup_note(facts: Facts) -> str:
    """Who meets whom, in words."""
    matchup, packs = facts.config.matchup, facts.plan.packs
    if matchup.scheme == "self" or all(pack.places == 1 for pack in packs):
        return "matchup: every member plays itself, so the objectives of a game that one wins and one loses say nothing"
    limit = f", those of the same device ({len(packs)} devices)" if len(packs) > 1 else ""
    return f"matchup: {matchup.scheme} against the other members{limit}; members are ranked by {matchup.objective}"


def _ids(members: tuple[int, ...]) -> str:
    """All of them, or the first and the last of many."""
    if len(members) <= 16:
        return ", ".join(map(str, members))
    return f"{', '.join(map(str, members[:3]))}, ... {members[-1]} ({len(members)})"


def create_run_folder(config: Config) -> tuple[Config, Path]:
    """Make the folder of a run and write its config. Raises ConfigError where that cannot be done.

    Returns the config with its name filled in.
    """
    name = config.name or f"{config.env.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = dataclasses.replace(config, name=name)
    folder = config.out / name
    if folder.exists():
        if not config.overwrite:
            raise ConfigError(
                f"--name {name}: {folder} exists already; choose another name or add --overwrite"
            )
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"--overwrite: {folder} is not a run (it has no config.json); remove it yourself"
            )
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(to_json(config), indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--out {config.out} cannot be written: {error.strerror or error}") from error
    return config, folder


def to_json(config: Config) -> dict[str, Any]:
    """Return a config as JSON types; `config_from_json` reads it back."""
    data = dataclasses.asdict(config)
    data["out"] = str(config.out)
    data["pbt"]["tune"] = list(config.pbt.tune)
    return data


def config_from_json(data: dict[str, Any]) -> Config:
    """Rebuild the config of a run. Raises ConfigError for anything that is not one."""
    return _rebuild(Config, data)  # type: ignore[no-any-return]


def _rebuild(kind: type[Any], data: dict[str, Any]) -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(data.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"config.json has unknown fields: {', '.join(unknown)}; was it written by another version?"
        )
    values: dict[str, Any] = {}
    for name, value in data.items():
        default = known[name].default_factory
        if isinstance(value, dict) and isinstance(default, type):
            values[name] = _rebuild(default, value)
        elif isinstance(value, list):
            values[name] = tuple(value)
        else:
            values[name] = Path(value) if name == "out" else value
    return kind(**values)
