"""The numbers of a view under the tags that all trackers show them by, such as `episodes/objective`.

Pages sort sections by name. So what members are ranked by stands in the first one, `episodes/`.
"""

from __future__ import annotations

from collections import Counter

from pbt_rl.display.ranking import GPU_LEARNING, WAITING, busy_shares, drawn_objective, standing
from pbt_rl.display.view import (
    EPISODE_STATS,
    EXTRA,
    MATCHUP_STATS,
    Evaluation,
    MemberView,
    RunView,
    run_statistics,
)
from pbt_rl.pbt.hypers import SHAPING

Scalars = dict[str, float]
CPU_SHARE = "throughput/cpu_"
_MAX_GAP_SECONDS = 60.0


def gap_seconds(seconds: float) -> float:
    """Return the time between two views that are written, `seconds` after the start of a run.

    It grows with the run (0.5 % of its time, at most a minute), so a day of training makes one or two megabytes per
    member.
    """
    return min(seconds / 200, _MAX_GAP_SECONDS)


def member_scalars(member: MemberView) -> Scalars:
    """Return tag -> value of one member; unknown values are absent."""
    scalars: Scalars = {"pbt/generation": member.generation, "throughput/episodes": member.episodes}
    objective = drawn_objective(member)
    if objective is not None:
        scalars["episodes/objective"] = objective
        if member.control:
            scalars["control/objective"] = objective
    episodes = EPISODE_STATS if member.complete else ()
    for group, names in (("episodes", episodes), ("matchup", MATCHUP_STATS)):
        scalars |= {f"{group}/{name}": member.stats[name] for name in names if name in member.stats}
    scalars |= {f"learning/{name}": value for name, value in member.learning_stats.items()}
    scalars |= {name: value for name, value in member.stats.items() if name.startswith(EXTRA)}
    for name, task in member.tasks.items():
        if task is not None:
            scalars |= {f"tasks/{name}": task.objective, f"task_returns/{name}": task.raw_return}
    return scalars | {value_tag(name): value for name, value in member.values.items()}


def population_scalars(view: RunView) -> Scalars:
    """Return tag -> value of the population."""
    scalars: Scalars = {shown.tag: value for shown, value in run_statistics(view).values() if shown.tag}
    scalars |= view.own
    scalars |= {
        f"throughput/replayed_{name}": one.replayed / one.of for name, one in view.replayed.items() if one.of
    }
    if WAITING in view.busy_threads:
        scalars["throughput/waiting_threads"] = view.busy_threads[WAITING]
    if GPU_LEARNING in view.busy_threads:
        scalars["throughput/gpus_learning"] = view.busy_threads[GPU_LEARNING]
    for stage, share in busy_shares(view.busy_threads).items():
        scalars[f"{CPU_SHARE}{stage}"] = share
    statuses = Counter(member.status for member in view.members)
    if set(statuses) != {""}:
        scalars |= {f"pbt/{status}": statuses[status] for status in ("parked", "stopped")}
    complete = [member for member in view.members if member.complete]
    for group, control in (("episodes", False), ("control", True)):
        objectives = standing(complete, control=control)
        if objectives is not None:
            scalars[f"{group}/objective_best"] = objectives.best
            scalars[f"{group}/objective_mean"] = objectives.mean
            scalars[f"{group}/objective_spread"] = objectives.spread
    return scalars


def evaluation_scalars(evaluation: Evaluation | None) -> Scalars:
    """Return tag -> value of the newest games beside training; nothing before the first."""
    if evaluation is None:
        return {}
    return {
        "evaluation/objective": evaluation.mean,
        "evaluation/spread": evaluation.spread,
        "evaluation/member": evaluation.member,
    }


def value_tag(name: str) -> str:
    """Return the tag of a hyper or of a shaping value."""
    return f"shaping/{name.removeprefix(SHAPING)}" if name.startswith(SHAPING) else f"hypers/{name}"
