"""Replay: train by the schedule that a recorded run found (Jaderberg et al. 2017, section 4.1; ray#7307)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import ConfigError, require
from pbt_rl.pbt.decisions import Decision, Mutate, PopulationReport, StateKey
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.lineage import Lineage
from pbt_rl.record.journal import read_journal

if TYPE_CHECKING:
    from pbt_rl.config import Config

Schedule = Sequence[tuple[int, Values]]
"""(from so many frames of the member on, values); the first is at 0, the frames rise."""


class Replay:
    """Every member follows one schedule: it begins with the first values and changes at the recorded frames.

    Weights are never copied: a member lives through what the ancestors of the recorded one did. A change comes with
    the first report at or after its frames; of several that are due at once only the last is made.
    """

    def __init__(self, schedule: Schedule) -> None:
        assert schedule
        assert schedule[0][0] == 0
        self._schedule = [(frames, dict(values)) for frames, values in schedule]
        self._steps: list[int] = []

    def initial(self, num_members: int) -> list[Values]:
        """The schedule's first values, for every member."""
        self._steps = [0] * num_members
        return [dict(self._schedule[0][1]) for _ in range(num_members)]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Change the members that have reached the next step of the schedule."""
        decisions: list[Decision] = []
        for m in report.members:
            step = self._steps[m.member]
            while step + 1 < len(self._schedule) and m.frames >= self._schedule[step + 1][0]:
                step += 1
            if step != self._steps[m.member]:
                self._steps[m.member] = step
                frames, values = self._schedule[step]
                reason = f"step {step + 1} of {len(self._schedule)}, recorded at {frames:,} frames"
                decisions.append(Mutate(m.member, dict(values), reason))
        return decisions

    def remembers(self) -> frozenset[StateKey]:
        """Nothing."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        """The step of each member, as JSON types; the schedule itself is what the controller is built with."""
        return {"steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._steps = list(state["steps"])


def build_replay(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Replay:  # noqa: ARG001
    """Replay that `--schedule` asks for. Nothing in it is random: the seed is only that of the weights.

    Values that the recorded run did not have keep their defaults; all are held within the present bounds. Raises
    ConfigError.
    """
    options = config.schedule
    require(options.run != "", "schedule.run", repr(options.run), "give the folder of a recorded run")
    try:
        events = read_journal(Path(options.run) / "journal.jsonl")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--schedule.run {options.run} cannot be used: {error}") from error
    schedule = recorded_schedule(events, options.member)
    if options.hold_final:
        schedule = [(0, schedule[-1][1])]
    unknown = sorted(schedule[0][1].keys() - table.keys())
    require(
        not unknown,
        "schedule.run",
        options.run,
        f"it has values that this run does not have ({', '.join(unknown)}): give a run of the same environment",
    )
    rest = {name: spec.default for name, spec in table.items()}
    return Replay(
        [
            (frames, rest | {name: table[name].clamp(value) for name, value in values.items()})
            for frames, values in schedule
        ]
    )


def recorded_schedule(events: Iterable[Mapping[str, Any]], member: str) -> list[tuple[int, Values]]:
    """Schedule along the ancestry of a recorded member: `best` or an id.

    Its frames are those that the member's weights had been trained on. The best is the member with the highest
    objective when it was last measured; it may have been stopped since. Raises ConfigError.
    """
    lineage = Lineage.from_events(events)
    steps: dict[int, Values] = {}
    for node in lineage.line(_chosen(lineage, member)):
        steps[node.trained] = node.values  # one that was changed again at once never trained
    return sorted(steps.items())


def _chosen(lineage: Lineage, member: str) -> StateKey:
    ids = {node.member for node in lineage.nodes}
    if member != "best":
        known = f"give `best` or one of 0..{max(ids, default=0)}"
        require(member.isdecimal() and int(member) in ids, "schedule.member", member, known)
        return lineage.path(int(member))[-1].key
    last: dict[int, StateKey] = {}
    for i in ids:
        for node in lineage.path(i):
            if math.isfinite(lineage.objectives.get(node.key, math.nan)):
                last[i] = node.key
    require(bool(last), "schedule.member", member, "the run has no objective yet: give the id of a member")
    return max(last.values(), key=lambda key: lineage.objectives[key])
