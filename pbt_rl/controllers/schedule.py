"""Controller that replays the values of a recorded run (Jaderberg et al. 2017, section 4.1; ray#7307)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pbt_rl.controllers.decisions import Controller, Decision, Mutate, PopulationReport, StateKey
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry
from pbt_rl.controllers.events import Event, Final, Resume, Start
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.controllers.lineage import Lineage
from pbt_rl.controllers.objectives import by_score
from pbt_rl.controllers.options import ScheduleConfig
from pbt_rl.controllers.records import MOST
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.values import path_given

Steps = Sequence[tuple[int, Values]]
"""Pairs (frame count of the member, values from this frame count on), ascending. The first frame count is 0."""


@dataclass(eq=False)
class Schedule:
    """Controller that gives all members the schedule (values over time) of a recorded member and its ancestors.

    Weights are never copied. A change of values happens at the first report at or after the recorded frame count. If
    several changes are due at one report, only the last change is applied.
    """

    steps: Steps
    _at: list[int] = field(default_factory=list, init=False)
    """Member -> index of its present values in `steps`."""

    def __post_init__(self) -> None:
        assert self.steps
        assert self.steps[0][0] == 0

    def initial(self, num_members: int) -> list[Values]:
        """Return the first values of the schedule for each member."""
        self._at = [0] * num_members
        return [dict(self.steps[0][1]) for _ in range(num_members)]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return decisions about the members that have reached the next step of the schedule."""
        decisions: list[Decision] = []
        for m in report.members:
            step = self._at[m.member]
            while step + 1 < len(self.steps) and m.frames >= self.steps[step + 1][0]:
                step += 1
            if step != self._at[m.member]:
                self._at[m.member] = step
                frames, values = self.steps[step]
                reason = f"step {step + 1} of {len(self.steps)}, recorded at {frames:,} frames"
                decisions.append(Mutate(m.member, dict(values), reason))
        return decisions

    def remembers(self) -> frozenset[StateKey]:
        """Return the empty set, because this controller restores no earlier state."""
        return frozenset()


def _schedule(given: ControllerContext) -> Controller:
    """Build the controller that follows a recorded run. Raises ConfigError if this run cannot be followed.

    Values that are not in the recorded run keep their defaults. Recorded hyperparameters that this run does not have
    are ignored if they are constant in the recorded schedule. Recorded values are clipped to the legal range.
    """
    options, table = given.options.group(ScheduleConfig), given.table
    steps = recorded_steps(_recorded(given, options.run), options.member)
    first = steps[0][1]
    strange = not first.keys() & table.keys()
    unknown = sorted(
        name
        for name in first.keys() - table.keys()
        if strange or name.startswith(SHAPING) or any(values[name] != first[name] for _, values in steps)
    )
    require(
        not unknown,
        "schedule.run",
        options.run,
        f"it has values that this run lacks ({', '.join(unknown)}): give a run of the same environment",
    )
    if options.hold_final:
        steps = [(0, steps[-1][1])]
    rest = {name: spec.default for name, spec in table.items()}
    return Schedule(
        [
            (frames, rest | {n: table[n].clamp_legal(value) for n, value in values.items() if n in table})
            for frames, values in steps
        ]
    )


def recorded_steps(events: Iterable[Event], member: str) -> list[tuple[int, Values]]:
    """Return the schedule (`Steps`) of a recorded member and its ancestors.

    member: `best` or an id. `best` is the member outside the control group with the highest score in the final
    evaluation. Without a final evaluation, `best` is the member with the highest last finite objective in training.
    This member may have been stopped.
    The frame counts of the schedule are the frames on which the member's weights and their ancestors were trained.
    Raises ConfigError for an unknown member, for `best` without any objective, and for events that contradict each
    other.
    """
    lineage, population, final_scores = Lineage(), MOST, dict[int, float]()
    for event in events:
        lineage.take(event)
        match event:
            case Start(config={"num_policies": int(number)}):
                population = number
            case Final():
                final_scores = event.means
            case Resume():  # the members have trained since
                final_scores = {}
    steps: dict[int, Values] = {}
    for node in lineage.line(_chosen(lineage, member, population, final_scores)):
        steps[node.trained] = node.values  # overwrites a node that changed again before it trained
    return sorted(steps.items())


def _chosen(lineage: Lineage, member: str, population: int, final_scores: Mapping[int, float]) -> StateKey:
    """Return the key of the last node of the recorded member. Raises ConfigError if this node does not exist.

    population: lowest id of the control group. final_scores: member -> mean of the final evaluation.
    For `best` without a final evaluation, the node is the member's last node with a finite objective.
    """
    ids = {node.member for node in lineage.nodes}
    if member != "best":
        chosen = next((i for i in ids if str(i) == member), None)
        known = f"give `best` or one of 0..{max(ids, default=0)}"
        require(chosen is not None, "schedule.member", member, known)
        assert chosen is not None
        return lineage.path(chosen)[-1].key
    last: dict[int, StateKey] = {}
    for i in ids:
        for node in lineage.path(i):
            if math.isfinite(lineage.objectives.get(node.key, math.nan)):
                last[i] = node.key
    ranked = by_score({i: lineage.objectives[key] for i, key in last.items()}, final_scores)
    best = next((i for i in ranked if i in ids and i < population), None)
    require(
        best is not None, "schedule.member", member, "the run has no objective yet: give the id of a member"
    )
    assert best is not None
    return lineage.path(best)[-1].key if best in final_scores else last[best]


def _recorded(given: ControllerContext, run: str) -> list[Event]:
    require(run != "", "schedule.run", repr(run), "give the folder of a recorded run")
    folder = path_given("--schedule.run", run)
    try:
        return list(given.journal(folder))
    except ConfigError as error:
        raise ConfigError(f"--schedule.run {run} cannot be used: {error}") from error


SCHEDULE = ControllerEntry(
    _schedule,
    ("schedule",),
    "follow the schedule of a recorded run (--schedule).",
    follows="schedule.run",
)
