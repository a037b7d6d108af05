"""Reports that a controller receives, and decisions that a controller returns.

A controller is pure: it reads a report, draws random numbers from its seeded generator, and returns decisions.
`changes` defines the effect of a decision on its member. The journal stores reports and decisions in the format of
these classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct, structs

from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.records import Value, Whole

CopyWhat = Literal["weights", "hypers", "both"]
NewValues = dict[str, Value]
PhaseNumber = Annotated[int, Meta(ge=0, lt=1000)]


@dataclass(frozen=True)
class MemberReport:
    """One member at the time of a report.

    Finished episodes are counted in `objectives`, `episodes` and `recent`. Until the window is full, one episode of
    each environment is counted whenever every environment has an uncounted episode (`population/population.py`). When
    the window is full, or after a timeout (`ControllerEntry.timeout_frames`), each episode is counted as soon as it
    ends. With tasks, an episode means a round here: one episode of every task.

    frames: emulator frames in which the member acted, over all generations. In `tune.run`: steps.
    objectives: objectives of the newest counted episodes that began after the member's last change, oldest first.
    Maximum number: --pbt.objective-episodes. NaN and infinities are possible, because environments may return them.
    During an evaluation, only its episodes count.
    episodes: number of counted episodes since the member's last change, including episodes that have left `objectives`.
    generation: number of changes of the member's weights or values.
    best: highest finite mean of `objectives` since the last decision about the member. None without such a mean.
    Means over fewer than --pbt.min-episodes episodes are ignored.
    broken: True if the member's latest optimiser steps were all skipped, because its gradients were not finite. In
    `tune.run`: True if the member's code raised an error.
    recent: number of counted episodes since the last decision about the member.
    """

    member: Whole
    frames: Whole
    objectives: tuple[float, ...]
    episodes: Whole
    generation: Whole
    values: Values = field(default_factory=dict)
    """Present values of the member: name -> number. Journals do not contain them, because earlier events determine the
    values (`decide.with_values`)."""
    best: float | None = None
    broken: bool = False
    recent: Whole | None = None
    """None: equal to `episodes`. Older versions did not record this field, so it is None in their journals."""


@dataclass(frozen=True)
class PopulationReport:
    """Population at the time of a report. members: members that have not been stopped, in order of id."""

    frames: Whole
    """Population clock. The ready rule `synchronous` uses this clock."""
    members: tuple[MemberReport, ...]
    seconds: float | None = None
    """Training time of the run in seconds, including the time before resumes. Set only for ready rules that read the
    time, because decisions that depend on time are not reproducible. Otherwise None.
    """


class _Decision(Struct, frozen=True, tag_field="decision", tag=str.lower):
    """Base of all decisions. reason: text for users, such as scores and changed values."""

    member: Whole


class Continue(_Decision, frozen=True):
    """Decision: continue training, unchanged.

    until_frames: the member pauses at this frame count, without a slot, until the next decision about the member. None:
    no limit.
    phase: phase or rung of a search that the member enters or continues. In a search, None means that the member waits
    for a phase.
    """

    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Replace(_Decision, frozen=True):
    """Decision: copy a donor's weights, values, or both.

    donor: copied member. With `donor_generation`, the donor may be the member itself.
    copy: copied parts: `weights`, `hypers` (the values), or `both`.
    values: all values of the member after the decision, regardless of `copy`.
    donor_generation: generation of the remembered state that is copied (`Controller.remembers`). None: the donor's
    present state is copied.
    """

    donor: Whole
    copy: CopyWhat
    values: NewValues
    reason: str
    donor_generation: Whole | None = None


class Mutate(_Decision, frozen=True):
    """Decision: keep the weights, and use `values`, which are all values of the member."""

    values: NewValues
    reason: str


class Restart(_Decision, frozen=True):
    """Decision: restart with initialised weights, a new optimiser and `values`, which are all values of the member.

    until_frames: the member pauses at this frame count until the next decision about the member. None: no limit.
    phase: phase or rung of a search that the member enters.
    """

    values: NewValues
    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Stop(_Decision, frozen=True):
    """Decision: stop training forever, and release the slot. The weights are kept.

    completed: True if the member finished its training in a search. False if the member was stopped early.
    score: last score of the member in the search. None: the score is unknown.
    place: (rank, number of ranked scores). Rank 1 is the best. None: the score was not ranked.
    """

    reason: str
    completed: bool = False
    score: float | None = None
    place: tuple[Whole, Whole] | None = None


class Evaluate(_Decision, frozen=True):
    """Decision: run evaluation episodes without learning, until the next decision about the member.

    The member's objective becomes the mean over complete episodes that begin after this decision.
    episodes: minimum number of episodes, divided equally among the member's environments.
    """

    episodes: Whole
    reason: str


StateKey = tuple[int, int]
"""Key of a state: (member, generation)."""

Decision = Continue | Replace | Mutate | Restart | Stop | Evaluate

OF_A_SEARCH = ("phase", "completed", "score", "place")
"""Fields that only searches set in their decisions. The journal omits them if a decision has no phase and no score."""


class Controller(Protocol):
    """Algorithm that decides which members change. It must be deterministic for a given seed and given reports."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the start values of the members, in order of id. Called once, before `observe`."""

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return decisions, at most one per member. Called often; most calls return an empty list."""

    def remembers(self) -> frozenset[StateKey]:
        """Return the keys (member, generation) of the states to keep in host memory.

        Called after each `observe` with decisions.
        A new key is a member with its generation before the decisions. The member's state before the decisions is then
        saved. It is kept as long as this method returns the key.
        """


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Return the JSON fields of a decision. The field "decision" is the kind of decision, such as "replace"."""
    made = structs.asdict(decision)
    searched = made.get("phase") is not None or made.get("score") is not None
    left_out = () if searched else OF_A_SEARCH
    kind = {"decision": type(decision).__struct_config__.tag}
    return kind | {name: value for name, value in made.items() if name not in left_out}


def values_of(decision: Decision) -> Values | None:
    """Return the values that a decision sets, or None if the decision keeps the values."""
    return decision.values if isinstance(decision, Replace | Mutate | Restart) else None


def donor_of(decision: Decision) -> tuple[int, int | None] | None:
    """Return (donor, `donor_generation`) of a replacement, or None for another decision."""
    return (decision.donor, decision.donor_generation) if isinstance(decision, Replace) else None
