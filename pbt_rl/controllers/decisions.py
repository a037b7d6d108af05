"""The reports that a controller receives and the decisions that it returns.

A controller is pure: it reads a report, draws from its own seeded generator, and returns decisions. `changes`
defines what they do to a member. A journal holds both as they are defined here.
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
    """One member at the moment of a report.

    frames: emulator frames that this member has trained on, over all its generations.
    objectives: true objectives of the episodes that began after the member's last change, oldest first, at
    most the window of `--pbt.objective-episodes`. May hold NaN or infinities if an environment gives them. None before
    each of its environments has ended one, then one of each, and so on (`population/population.py`).
    episodes: number of such episodes that count (may exceed the window).
    generation: number of changes of the member's weights or values.
    best: the highest mean of `objectives` since the last comparison or change, over at least --pbt.min-episodes (None
    without one).
    broken: its weights or losses are not finite any more, so it cannot learn.
    recent: number of episodes among `episodes` that ended since the member's last decision.
    """

    member: Whole
    frames: Whole
    objectives: tuple[float, ...]
    episodes: Whole
    generation: Whole
    values: Values = field(default_factory=dict)
    """A journal leaves them out: the events before have given them (`decide.with_values`)."""
    best: float | None = None
    broken: bool = False
    recent: Whole | None = None
    """None: as many as `episodes`, as in journals of before this field."""


@dataclass(frozen=True)
class PopulationReport:
    """The population at one moment. `members` are in order of id; stopped ones are absent."""

    frames: Whole
    """The least frames of any member: the clock of synchronous rules."""
    members: tuple[MemberReport, ...]
    seconds: float | None = None
    """Of training until now, over all resumes; only if the rule of readiness reads it, so that other runs can be
    reproduced."""


class _Decision(Struct, frozen=True, tag_field="decision", tag=str.lower):
    """What all decisions hold: the member that it is about. reason: for people, with scores and values."""

    member: Whole


class Continue(_Decision, frozen=True):
    """Train on, unchanged.

    until_frames: with this many frames the member stops and waits for the next decision, of any kind (None: no
    limit). Its slot goes to another member.
    phase: of a search, the phase or rung that the member is in from now on; None while it waits for one.
    """

    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Replace(_Decision, frozen=True):
    """Copy the donor's weights, hypers or both, and go on with `values`.

    `values` are final: they hold after the decision, whatever was copied.
    donor_generation: None for the donor's present state; else the remembered state of that generation
    (`Controller.remembers`), which may be one of the member's own.
    """

    donor: Whole
    copy: CopyWhat
    values: NewValues
    reason: str
    donor_generation: Whole | None = None


class Mutate(_Decision, frozen=True):
    """Keep the weights and go on with `values`."""

    values: NewValues
    reason: str


class Restart(_Decision, frozen=True):
    """Begin again with fresh weights, a fresh optimiser and `values`. until_frames, phase: as with `Continue`."""

    values: NewValues
    reason: str
    until_frames: Whole | None = None
    phase: PhaseNumber | None = None


class Stop(_Decision, frozen=True):
    """Train no more. The weights are kept; the slot goes to another member.

    completed: a search has trained the member to its end; else it has given it up. score: that it was judged by. place:
    (its own, from 1 for the best; of how many) among the scores that it was compared with. None: it was not.
    """

    reason: str
    completed: bool = False
    score: float | None = None
    place: tuple[Whole, Whole] | None = None


class Evaluate(_Decision, frozen=True):
    """Learn nothing until the next decision, whatever it is, and play with the weights as they are.

    The objective is then of the whole episodes that begin meanwhile. episodes: at least so many, equally many of each
    of the member's environments.
    """

    episodes: Whole
    reason: str


StateKey = tuple[int, int]
"""(member, generation)"""

Decision = Continue | Replace | Mutate | Restart | Stop | Evaluate

OF_A_SEARCH = ("phase", "completed", "score", "place")
"""Fields that a journal leaves out of decisions of other controllers."""


class Controller(Protocol):
    """Decides which members change. Deterministic under its seed and the reports that it received."""

    def initial(self, num_members: int) -> list[Values]:
        """Return the values of the members at the start, in order of id. Called once, first."""

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return the decisions, at most one per member. Called often; most of the time it returns none."""

    def remembers(self) -> frozenset[StateKey]:
        """Return the states to keep in host memory, after a comparison.

        A key that was there before keeps its state from then. A new key must be a member's present generation; its
        state is the one before the decisions just made. States of all other keys are forgotten.
        """


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Return the fields of a decision, and its kind under "decision", as a journal holds them."""
    made = structs.asdict(decision)
    searched = made.get("phase") is not None or made.get("score") is not None
    left_out = () if searched else OF_A_SEARCH
    kind = {"decision": type(decision).__struct_config__.tag}
    return kind | {name: value for name, value in made.items() if name not in left_out}


def values_of(decision: Decision) -> Values | None:
    """Return the values that a decision gives its member; None if it leaves them as they are."""
    return decision.values if isinstance(decision, Replace | Mutate | Restart) else None


def donor_of(decision: Decision) -> tuple[int, int | None] | None:
    """Return (donor, generation of its remembered state or None for the present one); None without a donor."""
    return (decision.donor, decision.donor_generation) if isinstance(decision, Replace) else None
