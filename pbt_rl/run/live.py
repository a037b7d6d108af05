"""Changes a run while it trains, as `pbt-rl set` asks.

    request in the run's folder -> checked against the options in force -> journal -> population, controller, saving

An option is taken over by whoever follows it; the controller is built anew and goes on from its own state, as when a
run is resumed. A member's values change as by a decision of the controller: an edit, a new generation, an empty window.
Whatever is wrong with a request is its answer, and then nothing was changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError
from pbt_rl.options import names_object, walk
from pbt_rl.pbt.decisions import Controller, Mutate
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.state import save_state
from pbt_rl.population.population import Population
from pbt_rl.record.folder import config_from_json, to_json
from pbt_rl.record.requests import Inbox, Request
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.controllers import resumed_controller
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun, check_evaluation
from pbt_rl.run.restarts import ActorRestarts
from pbt_rl.run.resuming import Changed

LIVE = (
    "train-for-frames",
    "train-for-seconds",
    "stop-at-objective",
    "final-episodes",
    "evaluate-every-frames",
    "evaluate-video",
    "save-every-seconds",
    "save-every-frames",
    "keep-checkpoints",
    "slot-frames",
    "max-actor-restarts",
)
"""Options that may change while a run trains, besides those of a controller: no learner and no actor follows them."""
FIXED = ("pbt.enabled", "pbt.objective-episodes", "pbt.start-values")
"""Of a controller's options, those that belong to a run's start or to windows that exist already."""


def may_be_set(name: str) -> bool:
    """Whether an option may change while a run trains."""
    return name in LIVE or (name.startswith("pbt.") and name not in FIXED)


class LiveChanges:
    """Takes the requests to a run and carries them out. Use it between two comparisons, from one thread."""

    def __init__(
        self,
        folder: Path,
        population: Population,
        comparisons: Comparisons,
        recorder: Recorder,
        checkpoints: Checkpointing,
        restarts: ActorRestarts,
    ) -> None:
        self._inbox = Inbox(folder)
        self._population, self._comparisons, self._recorder = population, comparisons, recorder
        self._checkpoints, self._restarts = checkpoints, restarts

    def carry_out(self, resolved: ResolvedRun, controller: Controller) -> tuple[ResolvedRun, Controller]:
        """Carry out a request, if there is one; return the run and the controller from now on."""
        taken = self._inbox.take()
        if taken is None:
            return resolved, controller
        name, request = taken
        try:
            if isinstance(request, ConfigError):
                raise request
            config = _changed(resolved.config, request.options)
            check_evaluation(config, resolved.spec)
            now = replace(resolved, config=config)
            decisions = _decisions(now, self._population, request)
            if config != resolved.config:
                controller = _rebuilt(now, controller)
        except (ConfigError, EnvSetupError) as error:
            self._inbox.refused(name, str(error))
            return resolved, controller
        self._inbox.changed(name, self._take_over(resolved, now, controller, decisions))
        return now, controller

    def _take_over(
        self, before: ResolvedRun, now: ResolvedRun, controller: Controller, decisions: list[Mutate]
    ) -> list[str]:
        """Let everybody follow the new options and values; return what is different, line by line."""
        pairs = zip(walk(before.config), walk(now.config), strict=True)
        changed: Changed = {name: (old, new) for (name, _, old), (_, _, new) in pairs if old != new}
        self._recorder.set_by_user(now, changed, decisions)
        if changed:
            config = now.config
            patience = controller_entry(config.controller).patience_frames(config, config.train_for_frames)
            self._population.follow(config.pbt.min_episodes, patience)
            self._comparisons.follow(now.config, controller)
            self._checkpoints.follow(now.config)
            self._restarts.follow(now.config)
        self._comparisons.set_values(decisions)
        self._checkpoints.ask()  # a kill right now should not undo it
        said = [f"--{name} is {new} from now on (it was {old})" for name, (old, new) in changed.items()]
        said += [f"member {d.member}: {d.reason}" for d in decisions]
        return said or ["nothing is different: the run has these options already"]


def _changed(config: Config, options: Mapping[str, Any]) -> Config:
    """Return the config with other options. Raises ConfigError, or EnvSetupError."""
    known = {name: value for name, _, value in walk(config)}
    data = to_json(config)
    for name, value in options.items():
        if name not in known or not may_be_set(name):
            raise ConfigError(
                f"--{name} cannot change while a run trains: these can: {', '.join(LIVE)} and pbt.*; others by "
                "`pbt-rl resume`, or not at all"
            )
        if isinstance(value, str) and names_object(value):
            raise ConfigError(
                f"--{name} {value:.100} cannot be loaded into a run that trains: end it, and give it to `pbt-rl resume`"
            )
        *groups, last = name.replace("-", "_").split(".")
        inner = data
        for group in groups:
            inner = inner[group]
        inner[last] = value
    now = config_from_json(data).with_declared_hypers()
    if now.train_for_frames != config.train_for_frames and config.learner.lr_schedule == "linear":
        raise ConfigError(
            "--train-for-frames cannot change while a run trains: its learning rate falls to 0 there "
            "(--learner.lr-schedule linear); end the run and give it to `pbt-rl resume`"
        )
    return now


def _rebuilt(now: ResolvedRun, controller: Controller) -> Controller:
    """Return the controller under the new options, as it goes on from here. Raises ConfigError."""
    state = save_state(controller)
    try:
        return resumed_controller(now.config, now.table, now.config.seed, state)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"a run that trains cannot take these options: {error}") from error


def _decisions(now: ResolvedRun, population: Population, request: Request) -> list[Mutate]:
    """Return the changes of members' values. Raises ConfigError."""
    if not request.values:
        return []
    if now.config.searches or now.config.controller == "schedule":
        raise ConfigError(
            f"--controller {now.config.controller} decides about all values of its members: none can be set"
        )
    table = now.tuned_table()
    given = {name: _allowed(table, name, value) for name, value in request.values.items()}
    training = [m for m in population.members if not m.stopped]
    chosen = [m for m in training if request.members is None or m.id in request.members]
    absent = set(request.members or ()) - {m.id for m in chosen}
    if absent:
        ids = ", ".join(str(m.id) for m in training)
        raise ConfigError(f"--member {min(absent)} cannot be used: the members that train are {ids}")
    decisions = []
    for member in chosen:
        different = {name: value for name, value in given.items() if value != member.values[name]}
        moved = ", ".join(f"{name} {member.values[name]:.4g} -> {different[name]:.4g}" for name in different)
        if different:
            decisions.append(Mutate(member.id, member.values | different, f"set by the user: {moved}"))
    return decisions


def _allowed(table: Mapping[str, HyperSpec], name: str, value: float) -> float:
    """Return a value that a member may have. Raises ConfigError for another one, or for one that there is not."""
    if name not in table:
        raise ConfigError(f"{name} is no value of a member: known names are {', '.join(sorted(table))}")
    spec = table[name]
    if math.isfinite(value) and spec.hold(value) == value:
        return value
    low, high = (spec.low, spec.high) if spec.tuned else spec.limits
    whole = "a whole number " if spec.scale == "integer" else ""
    bounds = " (the bounds of --pbt.tune)" if spec.tuned else ""
    raise ConfigError(f"{name}={value:g} cannot be used: give {whole}within {low:g}..{high:g}{bounds}")
