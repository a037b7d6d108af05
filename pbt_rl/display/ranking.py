"""Pure functions of views that the displays share: the ranking, changed values, shares of processor time.

    supervisor --- RunView, about once a second ---+--> tensorboard.TensorBoard   TensorBoard event files
                                                   +--> terminal.Terminal         live table or plain lines
    supervisor --- last RunView -------------------+--> summary.summary           content of summary.json

A display consumes views, produces text or files, and waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pbt_rl.display.view import MemberView
from pbt_rl.pbt.objectives import mean, spread

WAITING = "waiting"
"""The stage that is idle time."""
GPU_LEARNING = "learning on the GPU"
"""The stage that is no thread's: from the beginning of an update to its end on the device."""


@dataclass(frozen=True)
class Standing:
    """Summary of the population's objectives. `spread` is the standard deviation over the members (not of a sample).

    `best` is of all members. Mean and spread are of those that are not stopped, if there are any, since stopped members
    do not change.
    """

    best: float
    mean: float
    spread: float


def known_objective(member: MemberView) -> float | None:
    """Return the member's objective; None if there is none yet, or if it is NaN or infinite."""
    objective = member.objective
    return None if objective is None or not math.isfinite(objective) else objective


def drawn_objective(member: MemberView) -> float | None:
    """Return the objective for a curve: None while its window holds only the shortest episodes since a change."""
    return known_objective(member) if member.complete else None


def ranked(members: Sequence[MemberView]) -> list[MemberView]:
    """Return the best first, then members without an objective, then stopped ones; ties by id.

    Members that have played final games come before all others, by these; last of them those whose mean is not finite.
    """

    def key(member: MemberView) -> tuple[bool, bool, bool, float, int]:
        final = member.final
        if final is not None:
            finite = math.isfinite(final.mean)
            return False, False, not finite, -final.mean if finite else 0.0, member.member
        objective = known_objective(member)
        return True, member.stopped, objective is None, -(objective or 0.0), member.member

    return sorted(members, key=key)


def best_member(members: Sequence[MemberView]) -> int | None:
    """Return the id of the member with the highest objective, stopped or not; ties go to the lower id.

    After final games it is the best one of those, unless the mean of none is finite. None while no member has an
    objective.
    """
    final = [
        (-m.final.mean, m.member) for m in members if m.final is not None and math.isfinite(m.final.mean)
    ]
    if final:
        return min(final)[1]
    known = [(-objective, m.member) for m in members if (objective := known_objective(m)) is not None]
    return min(known)[1] if known else None


def standing(members: Sequence[MemberView]) -> Standing | None:
    """Summarise the known objectives; None if there are none."""
    all_known = [(m, objective) for m in members if (objective := known_objective(m)) is not None]
    if not all_known:
        return None
    best = max(objective for _, objective in all_known)
    known = [x for m, x in all_known if not m.stopped] or [x for _, x in all_known]
    return Standing(best, mean(known), spread(known))


def busy_shares(busy_threads: Mapping[str, float]) -> dict[str, float]:
    """Return stage -> share of all busy threads, without those that wait; empty if nothing was busy."""
    busy = {stage: threads for stage, threads in busy_threads.items() if stage not in (WAITING, GPU_LEARNING)}
    total = sum(busy.values())
    return {stage: threads / total for stage, threads in busy.items()} if total > 0 else {}


def differing(members: Sequence[MemberView]) -> frozenset[str]:
    """Return the names of the values that differ between members now."""
    seen: dict[str, float] = {}
    names = set()
    for member in members:
        for name, value in member.values.items():
            if seen.setdefault(name, value) != value:
                names.add(name)
    return frozenset(names)


def shown_values(member: MemberView, different: frozenset[str]) -> list[str]:
    """Return the names to show: changed since the start (largest relative change first), then `different` ones."""

    def change(name: str) -> float:
        now, then = member.values[name], member.initial.get(name, member.values[name])
        if now == then:
            return 0.0
        return abs(math.log(now / then)) if now * then > 0 else math.inf

    changes = {name: change(name) for name in member.values}
    names = [name for name in changes if changes[name] > 0 or name in different]
    return sorted(names, key=lambda name: -changes[name])
