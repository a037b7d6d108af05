"""Reports that a controller receives, and decisions that it returns.

A controller is pure: it reads a report, draws from its seeded generator, and returns decisions. `changes` defines their
effect on a member. A journal stores both as they are defined here.
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
    objectives: true objectives of the episodes that began after the member's last change, oldest first. At most
    --pbt.objective-episodes of them. May contain NaN or infinities if the environment returns them. They enter round by
    round, one episode per environment, and the first once each environment has ended one (`population/population.py`).
    episodes: number of counted episodes; may exceed the window.
    generation: number of changes of the member's weights or values.
    best: highest mean of `objectives` since the last comparison or change, over at least --pbt.min-episodes. None
    without one.
    broken: weights or losses are not finite, so the member cannot learn.
    recent: those of `episodes` that ended since the member's last decision.
    """

    member: Whole
    frames: Whole
    objectives: tuple[float, ...]
    episodes: Whole
    generation: Whole
    values: Values = field(default_factory=dict)
    """Absent from journals, because earlier events determine them (`decide.with_values`)."""
    best: float | None = None
    broken: bool = False
    recent: Whole | None = None
    """None: equal to `episodes`, as in journals older than this field."""


@dataclass(frozen=True)
class PopulationReport:
    """Population at the time of a report. `members`: in order of id, without stopped ones."""

    frames: Whole
    """Fewest frames of any member: the clock of synchronous rules."""
    members: tuple[MemberReport, ...]
    seconds: float | None = None
    """Training time in seconds, over all resumes. Set only if the ready rule reads it, because it makes a run
    irreproducible."""


class _Decision(Struct, frozen=True, tag_field="decision", tag=str.lower):
    """Base of all decisions. reason: text for people, with scores and values."""

    member: Whole


class Continue(_Decision, frozen=True):
    """Decision: train on, unchanged.

    until_frames: frames at which the member waits for its next decision, and its slot goes to another member. None: no
    limit.
    phase: search only, the phase or rung that the member enters. None while it waits for one.
    """

    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Replace(_Decision, frozen=True):
    """Decision: copy the donor's weights, hypers or both, and use `values`.

    `values` are final: they apply after the decision, whatever was copied.
    donor_generation: None for the donor's present state, else the generation of a remembered state
    (`Controller.remembers`). The donor may be the member itself.
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
    """Decision: stop training for good. The slot goes to another member.

    The weights are kept.
    completed: True if a search trained the member to its end, False if it evicted the member.
    score: by which the search ranked the member.
    place: (rank from 1 for the best, number of ranked scores). None: not ranked.
    """

    reason: str
    completed: bool = False
    score: float | None = None
    place: tuple[Whole, Whole] | None = None


class Evaluate(_Decision, frozen=True):
    """Decision: run evaluation episodes without learning, until the next decision.

    The objective is then the mean over whole episodes that begin after this decision.
    episodes: minimum number, in equal shares over the member's environments.
    """

    episodes: Whole
    reason: str


StateKey = tuple[int, int]
"""(member, generation)"""

Decision = Continue | Replace | Mutate | Restart | Stop | Evaluate

OF_A_SEARCH = ("phase", "completed", "score", "place")
"""Fields of a search, which a journal omits from the decisions of other controllers."""


class Controller(Protocol):
    """Policy that decides which members change. Deterministic given its seed and its reports."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the first values of the members, in order of id. Called once, before `observe`."""

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return the decisions, at most one per member. Called often; most calls return none."""

    def remembers(self) -> frozenset[StateKey]:
        """Return the states to keep in host memory, after a comparison.

        A key that was returned before keeps its state from then. A new key must be a member's present generation; its
        state is the one before the decisions just made. States of all other keys are dropped.
        """


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Return the JSON fields of a decision, with its kind under "decision"."""
    made = structs.asdict(decision)
    searched = made.get("phase") is not None or made.get("score") is not None
    left_out = () if searched else OF_A_SEARCH
    kind = {"decision": type(decision).__struct_config__.tag}
    return kind | {name: value for name, value in made.items() if name not in left_out}


def values_of(decision: Decision) -> Values | None:
    """Return the values that a decision sets, or None if it keeps them."""
    return decision.values if isinstance(decision, Replace | Mutate | Restart) else None


def donor_of(decision: Decision) -> tuple[int, int | None] | None:
    """Return (donor, its remembered generation or None), or None without a donor."""
    return (decision.donor, decision.donor_generation) if isinstance(decision, Replace) else None
