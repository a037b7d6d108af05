"""From `--hours` to the options of a run.

    values of the user, over recipes -> play some episodes, train for seconds -> Measured -> Choice -> options

What the user gives stays. A run that is there already keeps what was chosen for it: its config is a fact, and so are
the times of its comparisons, which its journal holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from pbt_rl.config import Config, hypers_of
from pbt_rl.dial.choice import (
    LONGEST_ROLLOUT,
    PERIODS,
    Choice,
    Measured,
    TooShortError,
    chosen,
)
from pbt_rl.dial.measure import (
    LEAST_TRIAL_SECONDS,
    MOST_TRIAL_SECONDS,
    PLAY_SECONDS,
    Episodes,
    Trial,
    played,
    tried_run,
)
from pbt_rl.dial.options import HoursOption
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.registry import probe
from pbt_rl.errors import ConfigError, environment_code, require
from pbt_rl.options import build, changed
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.pbt.timed.options import TimedOptions
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.run.resolved import build_controller, value_table

if TYPE_CHECKING:
    from pbt_rl.plan import PackPlan

TRIAL_SHARE = 0.02
CHOSEN = (
    "num_policies",
    "train_for_seconds",
    "train_for_frames",
    "envs_per_unit",
    "actors",
    "rows",
    "learner.rollout",
    "learner.minibatches",
    "hypers.unroll",
    "pbt.ready",
    "pbt.period_seconds",
    "pbt.start_seconds",
    "pbt.period_frames",
    "pbt.start_frames",
    "pbt.min_episodes",
    "pbt.objective_episodes",
)
MEMBERS_OF_ANY_RULE = 64
"""Enough for every rule and controller."""
BATCHES = 3
"""Of a period, if rollouts are made longer."""
FRAMES_ROOM, SCHEDULE_ROOM = 100.0, 4.0
"""The limit on frames, over those that the trial's speed makes: the time ends the run, also on a machine that was busy
during the trial. The second for a learning rate that falls to 0 at that limit, and so hardly falls here."""


def dialled(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that follow, without those that the user has given. Raises ConfigError or EnvSetupError."""
    names = [name for name in CHOSEN if name not in given]
    config = _config(values)
    if not names:  # a file has it all
        return {}
    found = _of_run(config, names)
    if found is None:
        found = _measured(config, given)
    return {name: found[name] for name in names if name in found}


def _config(values: Mapping[str, Any]) -> Config:
    known = {f.name for f in fields(Config)}
    own = {name: value for name, value in values.items() if name.partition(".")[0] in known}
    return build(Config, own, hypers=hypers_of(own.get("algo", Config.algo)))


def _of_run(config: Config, names: list[str]) -> dict[str, Any] | None:
    """Return what was chosen for a run of this name and time, which will be continued; None if there is none."""
    folder = RunFolder(config.out / (config.name or ""))
    if config.name is None or config.overwrite or not folder.is_run:
        return None
    recorded = config_from_json(json.loads(folder.config.read_text()))
    require(
        _hours(recorded) == _hours(config),
        "hours",
        _hours(config),
        f"{folder.path} was begun with --hours {_hours(recorded)}: go on with pbt-rl resume {folder.path} "
        "--train-for-seconds, or give another --name",
    )
    return {name: _field(recorded, name) for name in names}


def _field(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _measured(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    hours = _hours(config)
    assert hours is not None
    seconds = given.get("train_for_seconds") or hours * 3600
    entry = controller_entry(config.controller)
    require(
        not given.get("nodes"),
        "hours",
        f"{hours:g}",
        "it measures this machine: leave out --nodes, or give --train-for-seconds instead",
    )
    require(
        entry.compares and config.pbt.enabled,
        "hours",
        f"{hours:g}",
        "it chooses when members are compared, and these are not: give --train-for-seconds instead",
    )
    require(
        not config.slots,
        "slots",
        config.slots,
        "with --hours all members train at the same time: leave out one of the two",
    )
    with environment_code(config.env):
        spec = probe(config.env, config.env_options)
    if "pbt.ready" not in given:
        _check_by_time(config, spec, hours)
    budget = min(max(TRIAL_SHARE * seconds, LEAST_TRIAL_SECONDS), MOST_TRIAL_SECONDS)
    playing = 0.0 if spec.resident else min(budget, PLAY_SECONDS)
    _say(
        f"--hours {hours:g}: a trial of {playing + budget:.0f} s and its start measure {config.env}; "
        "nothing of it is kept"
    )
    episodes = None if spec.resident else played(config, spec, playing)
    trial = tried_run(_for_trial(config), budget)
    return _options(config, given, spec, _from_trial(spec, episodes, trial), seconds)


def _check_by_time(config: Config, spec: EnvSpec, hours: float) -> None:
    """Raise ConfigError, before the trial, for a controller or an option that does not go with comparisons by time."""
    by_time = replace(config, num_policies=MEMBERS_OF_ANY_RULE, pbt=changed(config.pbt, {"ready": "timed"}))
    try:
        build_controller(by_time, value_table(config.with_declared_hypers(), spec.shaping), config.seed)
    except ConfigError as error:
        if "--pbt.ready" in str(error):
            raise ConfigError(
                f"--hours {hours:g} cannot be used, as it has members compared by time: {error}. Or give "
                "--train-for-seconds instead of --hours"
            ) from error


BESIDE: Mapping[str, Any] = {"hours": None, "control": 0.0, "init_from": ()}
"""Options of extras, as a trial has them."""


def _without(config: Config, *names: str) -> dict[str, Any]:
    return {name: BESIDE[name] for name in names if hasattr(config, name)}


def _for_trial(config: Config) -> Config:
    alone: dict[str, object] = {
        "enabled": False,
        "ready": "synchronous",
        "start_values": (),
        "evaluate_episodes": 0,
    }
    return replace(
        config,
        train_for_frames=10**15,
        stop_at_objective=None,
        slots=0,
        pbt=changed(config.pbt, alone),
        **_without(config, *BESIDE),
    )


def _from_trial(spec: EnvSpec, episodes: Episodes | None, trial: Trial) -> Measured:
    rate = trial.frames_per_second / spec.frame_skip
    members = trial.summary["members"]
    steps = sum(m["frames"] for m in members) / spec.frame_skip
    images = any(len(array.shape) == 3 for array in spec.obs.values()) or spec.frame_stack > 1
    if rate <= 0 or steps <= 0:
        raise ConfigError(
            "--hours cannot be used: the trial run finished no batch in its time: give a longer one, or a smaller "
            "--learner.batch"
        )
    if episodes is None:
        rows = _wanted(trial.config, spec) * len(members)
        ended = sum(m["episodes"] for m in members)
        usual = steps / rows / (ended / rows + 0.5) if ended else steps / rows
        return Measured(rate, usual, usual, images=images)
    lengths = episodes.ended or (episodes.steps,)
    longest = max(*lengths, episodes.steps) if len(episodes.ended) < 2 else max(lengths)
    return Measured(rate, median(lengths), longest, episodes.limit, images)


def _wanted(config: Config, spec: EnvSpec) -> int:
    """Return the environments, or rows in a simulator, of each member that are planned if nothing limits them."""
    pack = _pack(config, spec)
    return pack.envs_per_policy if spec.resident else pack.environments_of_member


def _pack(config: Config, spec: EnvSpec) -> PackPlan:
    from pbt_rl.learner.simulators import simulators  # noqa: PLC0415 - torch comes with it
    from pbt_rl.plan import Machine, make_plan  # noqa: PLC0415

    own = simulators(spec)
    plan = make_plan(config, Machine.here(), spec.seats, None if own is None else own.lay_out)
    return min(plan.packs, key=lambda pack: pack.environments_of_member)


def _options(
    config: Config, given: Mapping[str, Any], spec: EnvSpec, measured: Measured, seconds: float
) -> dict[str, Any]:
    wanted = _wanted(config, spec)

    def everyone(population: int) -> int:
        return replace(config, num_policies=population, **_without(config, "init_from")).members

    try:
        choice = chosen(seconds, measured, wanted, given.get("num_policies"), everyone)
    except TooShortError as error:
        by_seconds = "train_for_seconds" in given
        asked = f"--train-for-seconds {seconds:g}" if by_seconds else f"--hours {seconds / 3600:g}"
        least = f"{1.05 * error.seconds:.0f} s" if by_seconds else f"--hours {_up(error.seconds / 3600)}"
        raise ConfigError(
            f"{asked} cannot be used: at {measured.steps_per_second:,.0f} steps/s, with episodes of "
            f"up to {measured.longest_steps:,.0f} steps, {PERIODS} periods are too short to compare members: give at "
            f"least {least}"
        ) from None
    each = measured.steps_per_second / everyone(choice.members) * spec.frame_skip
    room = SCHEDULE_ROOM if config.learner.lr_schedule == "linear" else FRAMES_ROOM
    _say(
        f"measured {measured.steps_per_second:,.0f} steps/s of all members; episodes of "
        f"{measured.episode_steps:,.0f} steps"
        + (f", {measured.limit_steps:,} at most" if measured.limit_steps else "")
    )
    return {
        "num_policies": choice.members,
        "train_for_seconds": float(seconds),
        "train_for_frames": max(1, round(room * each * seconds)),
        "pbt.ready": "timed",
        "pbt.period_seconds": choice.period_seconds,
        "pbt.start_seconds": choice.start_seconds,
        "pbt.period_frames": max(1, round(each * choice.period_seconds)),
        "pbt.start_frames": round(each * choice.start_seconds),
        "pbt.min_episodes": choice.min_episodes,
        "pbt.objective_episodes": choice.window,
        **_layout(replace(config, num_policies=choice.members), given, spec, choice, measured),
    }


def _layout(
    config: Config, given: Mapping[str, Any], spec: EnvSpec, choice: Choice, measured: Measured
) -> dict[str, Any]:
    """Return the options that give each member fewer environments, with longer rollouts for as large a batch.

    Of such batches a period holds some, as in the sync modes members are compared after a batch.
    """
    pack = _pack(config, spec)
    planned = pack.envs_per_policy if spec.resident else pack.environments_of_member
    if choice.environments >= planned or spec.seats > 1 or given.keys() & {"envs_per_unit", "actors", "rows"}:
        return {}
    found: dict[str, Any]
    if spec.resident:
        rows, found = choice.environments, {"rows": choice.environments}
    else:
        per_actor = config.units_per_actor
        actors = max(
            range(1, pack.actors + 1),
            key=lambda a: (a * per_actor * (choice.environments // (a * per_actor)), a),
        )
        envs = max(1, choice.environments // (actors * per_actor))
        rows, packs = actors * per_actor * envs, -(-config.members // len(pack.members))
        found = {"actors": actors * packs, "envs_per_unit": envs}
    in_time = measured.steps_per_second * choice.period_seconds / BATCHES / (config.members * rows)
    longer = min(LONGEST_ROLLOUT, config.learner.batch // rows, int(in_time))
    if config.algo == "appo" and longer > config.learner.rollout and "learner.rollout" not in given:
        found |= {"learner.rollout": longer, "hypers.unroll": longer}
    batch_rows = min(
        rows, max(1, config.learner.batch // found.get("learner.rollout", config.learner.rollout))
    )
    if config.learner.minibatches > batch_rows:  # of whole rollouts
        found["learner.minibatches"] = batch_rows
    return found


def _up(hours: float) -> str:
    """Write with two digits, rounded up."""
    return f"{hours * 1.05:.2g}"


def _say(text: str) -> None:
    print(f"pbt-rl: {text}", file=sys.stderr, flush=True)


def notes(config: Config) -> list[str]:
    """Return what was chosen, for the plan; nothing for a run without `--hours`."""
    if _hours(config) is None or config.pbt.ready != "timed":
        return []
    pbt, seconds = config.group(TimedOptions), config.train_for_seconds
    window, least = config.pbt.objective_episodes, config.pbt.min_episodes
    first = max(pbt.start_seconds, pbt.period_seconds)
    held = 1 + int((seconds - first) / pbt.period_seconds) if seconds > first else 0
    text = f"note: --hours {_hours(config):g}: {seconds:,.0f} s of training"
    if config.num_policies > 1:
        text += (
            f"; members are compared after {first:g} s, then every {pbt.period_seconds:g} s, about {held} times, by "
            f"the last {window} episodes since their last change ({least} at least); all of them train at the same time"
        )
    return [text]


def _hours(config: Config) -> float | None:
    return config.group(HoursOption).hours
