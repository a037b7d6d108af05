"""Reports that a controller receives, and decisions that a controller returns.

A controller is pure: it reads a report, draws from its seeded generator, and returns decisions. `changes` defines the
effect of a decision on its member. The journal stores reports and decisions in the format of these classes.
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

    frames: emulator frames that the member has trained on, over all generations.
    objectives: true objectives of the newest episodes that began after the last change, oldest first. At most
    --pbt.objective-episodes. NaN and infinities occur if the environment returns them. Episodes count in rounds of one
    episode per environment (`population/population.py`).
    episodes: number of counted episodes. It may exceed the window.
    generation: number of changes of the member's weights or values.
    best: highest mean of `objectives` since the last comparison or change, over at least --pbt.min-episodes, or None.
    broken: weights or losses are not finite, so the member cannot learn.
    recent: number of `episodes` that ended since the member's last decision.
    """

    member: Whole
    frames: Whole
    objectives: tuple[float, ...]
    episodes: Whole
    generation: Whole
    values: Values = field(default_factory=dict)
    """Absent from journals, because earlier events determine the values (`decide.with_values`)."""
    best: float | None = None
    broken: bool = False
    recent: Whole | None = None
    """None: equal to `episodes`. Journals older than this field have None."""


@dataclass(frozen=True)
class PopulationReport:
    """Population at the time of a report. members: in order of id, without stopped members."""

    frames: Whole
    """Frames of the member with the fewest frames. Clock of synchronous rules."""
    members: tuple[MemberReport, ...]
    seconds: float | None = None
    """Training time in seconds, over all resumes. Only set if the ready rule reads it, because decisions by time are
    not reproducible."""


class _Decision(Struct, frozen=True, tag_field="decision", tag=str.lower):
    """Base of all decisions. reason: text for users, with scores and values."""

    member: Whole


class Continue(_Decision, frozen=True):
    """Decision: continue training, unchanged.

    until_frames: frames of the member at which it waits for its next decision, without a slot. None: no limit.
    phase: phase or rung that the member enters (search only). None: the member waits for a phase.
    """

    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Replace(_Decision, frozen=True):
    """Decision: copy the donor's weights, hypers or both.

    donor: member to copy. It may be the member itself, with a remembered state.
    values: values of the member after the decision, for each `copy`.
    donor_generation: generation of a remembered state (`Controller.remembers`). None: the donor's present state.
    """

    donor: Whole
    copy: CopyWhat
    values: NewValues
    reason: str
    donor_generation: Whole | None = None


class Mutate(_Decision, frozen=True):
    """Decision: keep the weights, and use `values`."""

    values: NewValues
    reason: str


class Restart(_Decision, frozen=True):
    """Decision: restart with initialised weights, a new optimiser and `values`.

    until_frames, phase: see `Continue`.
    """

    values: NewValues
    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Stop(_Decision, frozen=True):
    """Decision: stop training forever, and release the slot. The weights are kept.

    completed: True if the member finished its training in a search, False if the search stopped it early.
    score: score by which the search ranked the member.
    place: (rank, number of ranked scores). Rank 1 is the best. None: not ranked.
    """

    reason: str
    completed: bool = False
    score: float | None = None
    place: tuple[Whole, Whole] | None = None


class Evaluate(_Decision, frozen=True):
    """Decision: run evaluation episodes without learning, until the next decision.

    The objective is the mean over complete episodes that begin after this decision.
    episodes: minimum number of episodes, divided equally among the member's environments.
    """

    episodes: Whole
    reason: str


StateKey = tuple[int, int]
"""(member, generation)"""

Decision = Continue | Replace | Mutate | Restart | Stop | Evaluate

OF_A_SEARCH = ("phase", "completed", "score", "place")
"""Fields of searches. The journal omits these fields from the decisions of other controllers."""


class Controller(Protocol):
    """Algorithm that decides which members change. Deterministic for a given seed and given reports."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the start values of the members, in order of id. Called once, before `observe`."""

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return decisions, at most one per member. Called at each report; most calls return an empty list."""

    def remembers(self) -> frozenset[StateKey]:
        """Return the states to keep in host memory. Called after each comparison.

        A new key must be a present (member, generation). The state before the decisions of this comparison is saved
        for it. A repeated key keeps its saved state. States of all other keys are dropped.
        """


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Return the JSON fields of a decision. The field "decision" is the kind, such as "replace"."""
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
