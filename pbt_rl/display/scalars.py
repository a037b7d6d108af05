"""Numbers of a view: as tag -> value for TensorBoard and trackers, and as the content of summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from pbt_rl.controllers.events import GPU_LEARNING, WAITING
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.display import ranking
from pbt_rl.display.view import (
    EPISODE_STATS,
    EXTRA,
    MATCHUP_STATS,
    Evaluation,
    MemberView,
    RunView,
    replayed,
    run_statistics,
)

Scalars = dict[str, float]
CPU_SHARE = "throughput/cpu_"
_MAX_GAP_SECONDS = 60.0


def gap_seconds(seconds: float) -> float:
    """Return the interval between two written views: 0.5 % of `seconds`, at most a minute.

    With this interval, a day of training takes 1 to 2 MB per member.

    seconds: time since the start of the run.
    """
    return min(seconds / 200, _MAX_GAP_SECONDS)


def member_scalars(member: MemberView, shown: Collection[str] | None = None) -> Scalars:
    """Return tag -> value of one member, without unknown values.

    Until each of the member's environments has ended an episode since the last change, the objective is left out.
    Return and length are then left out, too, if the member has ever been changed. With these values, the curves would
    drop after each change, because short episodes end first.

    shown: names of the values to include. None: all values.
    """
    scalars: Scalars = {"pbt/generation": member.generation, "episodes/ended": member.episodes}
    if member.environments:
        scalars["episodes/environments_ended"] = member.ended / member.environments
    objective = ranking.drawn_objective(member)
    if objective is not None:
        scalars["episodes/objective"] = objective
        if member.control:
            scalars["control/objective"] = objective
    episodes = EPISODE_STATS if member.complete or not member.generation else ()
    for group, names in (("episodes", episodes), ("matchup", MATCHUP_STATS)):
        scalars |= {f"{group}/{name}": member.stats[name] for name in names if name in member.stats}
    scalars |= {f"learning/{name}": value for name, value in member.learning_stats.items()}
    scalars |= {name: value for name, value in member.stats.items() if name.startswith(EXTRA)}
    for name, task in member.tasks.items():
        if task is not None:
            scalars |= {f"tasks/{name}": task.objective, f"task_returns/{name}": task.raw_return}
    return scalars | {
        value_tag(name): value for name, value in member.values.items() if shown is None or name in shown
    }


def curves_of_values(view: RunView) -> frozenset[str]:
    """Return the names of values that are tuned, differ between members, or have changed."""
    changed = {name for m in view.members for name in ranking.shown_values(m.initial, m.values)}
    return view.tuned | ranking.differing(view.members) | changed


def population_scalars(view: RunView) -> Scalars:
    """Return tag -> value for the numbers of the population."""
    scalars: Scalars = {shown.tag: value for shown, value in run_statistics(view).values() if shown.tag}
    scalars |= view.own
    scalars |= {
        f"throughput/replayed_{name}": one.replayed / one.of for name, one in replayed(view).items() if one.of
    }
    if WAITING in view.busy_threads:
        scalars["throughput/waiting_threads"] = view.busy_threads[WAITING]
    if GPU_LEARNING in view.busy_threads:
        scalars["throughput/gpus_learning"] = view.busy_threads[GPU_LEARNING]
    for stage, share in ranking.busy_shares(view.busy_threads).items():
        scalars[f"{CPU_SHARE}{stage}"] = share
    statuses = Counter(member.status for member in view.members)
    if set(statuses) != {""}:
        scalars |= {f"pbt/{status}": statuses[status] for status in ("parked", "stopped")}
    complete = [member for member in view.members if member.complete]
    for group, control in (("episodes", False), ("control", True)):
        objectives = ranking.standing(complete, control=control)
        if objectives is not None:
            scalars[f"{group}/objective_best"] = objectives.best
            scalars[f"{group}/objective_mean"] = objectives.mean
            scalars[f"{group}/objective_spread"] = objectives.spread
    return scalars


def evaluation_scalars(evaluation: Evaluation | None) -> Scalars:
    """Return tag -> value for an evaluation during training. Return {} for None."""
    if evaluation is None:
        return {}
    return {
        "evaluation/objective": evaluation.mean,
        "evaluation/spread": evaluation.spread,
        "evaluation/member": evaluation.member,
    }


def value_tag(name: str) -> str:
    """Return the tag of a hyperparameter or a reward weight."""
    return f"shaping/{name.removeprefix(SHAPING)}" if name.startswith(SHAPING) else f"hypers/{name}"


def summary(
    view: RunView,
    *,
    frames_per_second_steady: float,
    replacement_milliseconds: Sequence[float],
    ended: str,
    warnings: Sequence[str] = (),
    saved_at_frames: int | None = None,
) -> dict[str, Any]:
    """Return the content of summary.json as JSON types. Numbers may be NaN or infinite.

    frames_per_second_steady: mean speed of all members together, without start-up and shutdown.
    replacement_milliseconds: durations of the latest replacements, measured in the learners.
    ended: reason for the end, such as `frames`, `seconds`, `interrupted by SIGINT`.
    warnings: warnings during the run.
    saved_at_frames: population clock of the checkpoint at the end. None if there is no checkpoint at the end.
    """
    times = replacement_milliseconds
    return _statistics(view) | {
        "frames_per_second": frames_per_second_steady,
        "replacement_milliseconds": {
            "median": median(times) if times else None,
            "max": max(times, default=None),
        },
        "best_member": ranking.best_member(view.members),
        "members": [_member(member) for member in view.members],
        "saved_at_frames": saved_at_frames,
        "ended": ended,
        "warnings": list(warnings),
    }


def _statistics(view: RunView) -> dict[str, Any]:
    """Return the statistics for summary.json.

    These are the fields of the view that have a `Statistic.key`, and counts of CUDA graph replays. The key `a.b` means
    the key `b` of the object `a`.
    """
    content: dict[str, Any] = {}
    for shown, value in run_statistics(view).values():
        *outer, last = shown.key.split(".")
        inner = content
        for name in outer:
            inner = inner.setdefault(name, {})
        if last:
            inner[last] = value
    counts = {name: asdict(one) for name, one in replayed(view).items()}
    return content | ({"replayed": counts} if counts else {})


def _member(member: MemberView) -> dict[str, Any]:
    values = member.values
    content = {
        "id": member.member,
        "frames": member.frames,
        "status": member.status,
        "objective": ranking.known_objective(member),
        "episodes": member.episodes,
        "generation": member.generation,
        "hypers": {name: value for name, value in values.items() if not name.startswith(SHAPING)},
        "shaping": {
            name.removeprefix(SHAPING): value for name, value in values.items() if name.startswith(SHAPING)
        },
    }
    if member.control:
        content["control"] = True
    if member.final is not None:
        content["final"] = {name: x for name, x in asdict(member.final).items() if name != "halves"}
    if member.tasks:
        content["tasks"] = {name: task and asdict(task) for name, task in member.tasks.items()}
    return content | {name: member.stats[name] for name in MATCHUP_STATS if name in member.stats}
