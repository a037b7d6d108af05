"""What the displays share: who leads, who moved, where the time went. Pure functions of a `RunView`.

    supervisor --- RunView, about once a second ---+--> board.TensorBoard      TensorBoard event files
                                                   +--> screen.Terminal    terminal: live table or plain lines
    supervisor --- last RunView -------------------+--> summary.write_summary   summary.json

A display consumes views, produces text or files, and waits for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pbt_rl.display.view import MemberView

WAITING = "waiting"
"""The stage that is idle time, not work."""


@dataclass(frozen=True)
class Standing:
    """The population's objectives. `spread` is the standard deviation over the members (not of a sample).

    `best` is of all members. Mean and spread are of those that were not stopped, if there are any: the others stand
    still.
    """

    best: float
    mean: float
    spread: float


def known_objective(member: MemberView) -> float | None:
    """The member's objective; None where there is none yet or where it is NaN or infinite."""
    objective = member.objective
    return None if objective is None or not math.isfinite(objective) else objective


def ranked(members: Sequence[MemberView]) -> list[MemberView]:
    """Best first, then those without an objective, then the stopped; ties by id."""

    def key(member: MemberView) -> tuple[bool, bool, float, int]:
        objective = known_objective(member)
        return member.stopped, objective is None, -(objective or 0.0), member.member

    return sorted(members, key=key)


def best_member(members: Sequence[MemberView]) -> int | None:
    """Id of the member of the highest objective, stopped or not; ties go to the lower id.

    None while no member has an objective.
    """
    known = [(-objective, m.member) for m in members if (objective := known_objective(m)) is not None]
    return min(known)[1] if known else None


def standing(members: Sequence[MemberView]) -> Standing | None:
    """How the members that have an objective stand; None when there is none."""
    everybody = [(m, objective) for m in members if (objective := known_objective(m)) is not None]
    if not everybody:
        return None
    best = max(objective for _, objective in everybody)
    known = [x for m, x in everybody if not m.stopped] or [x for _, x in everybody]
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((objective - mean) ** 2 for objective in known) / len(known))
    return Standing(best, mean, spread)


def busy_shares(stage_seconds: Mapping[str, float]) -> dict[str, float]:
    """Stage -> its share of all busy thread-seconds, waiting left out; empty when nothing was busy."""
    busy = {stage: seconds for stage, seconds in stage_seconds.items() if stage != WAITING}
    total = sum(busy.values())
    return {stage: seconds / total for stage, seconds in busy.items()} if total > 0 else {}


def differing(members: Sequence[MemberView]) -> frozenset[str]:
    """Names of the values in which the members are not all alike now."""
    seen: dict[str, float] = {}
    names = set()
    for member in members:
        for name, value in member.values.items():
            if seen.setdefault(name, value) != value:
                names.add(name)
    return frozenset(names)


def shown_values(member: MemberView, different: frozenset[str]) -> list[str]:
    """Names worth showing: moved since the start (largest relative change first), then `different` ones."""

    def change(name: str) -> float:
        now, then = member.values[name], member.initial.get(name, member.values[name])
        if now == then:
            return 0.0
        return abs(math.log(now / then)) if now * then > 0 else math.inf

    changes = {name: change(name) for name in member.values}
    names = [name for name in changes if changes[name] > 0 or name in different]
    return sorted(names, key=lambda name: -changes[name])
