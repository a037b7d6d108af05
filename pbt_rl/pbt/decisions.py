"""The reports that a controller receives and the decisions that it returns.

A controller is pure: it reads a report, draws from its own seeded generator, and returns decisions. `changes`
defines their meaning.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, cast, get_args

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.fields import Fields
from pbt_rl.pbt.hypers import Values

CopyWhat = Literal["weights", "hypers", "both"]


@dataclass(frozen=True)
class MemberReport:
    """One member at the moment of a report.

    frames: emulator frames that this member has trained on, over all its generations.
    objectives: true objectives of the episodes that began after the member's last change, oldest first, at
    most the window of `--pbt.objective-episodes`. May hold NaN or infinities if an environment gives them. None before
    each of its environments has ended one, then one of each, and so on (`population/shares.py`).
    episodes: number of such episodes that count (may exceed the window).
    generation: number of changes of the member's weights or values.
    best: the highest mean of `objectives` since the last comparison or change, over at least --pbt.min-episodes (None
    without one).
    broken: its weights or losses are not finite any more, so it cannot learn.
    """

    member: int
    frames: int
    objectives: tuple[float, ...]
    episodes: int
    generation: int
    values: Values
    best: float | None = None
    broken: bool = False


@dataclass(frozen=True)
class PopulationReport:
    """The population at one moment. `members` are in order of id; stopped ones are absent."""

    frames: int
    """The least frames of any member: the clock of synchronous rules."""
    members: tuple[MemberReport, ...]


@dataclass(frozen=True)
class Continue:
    """Train on, unchanged.

    until_frames: with this many frames the member stops and waits for the next decision, of any kind (None: no
    limit). Its slot goes to another member.
    """

    member: int
    reason: str
    until_frames: int | None = None


@dataclass(frozen=True)
class Replace:
    """Copy the donor's weights, hypers or both, and go on with `values`.

    `values` are final: they hold after the decision, whatever was copied.
    donor_generation: None for the donor's present state; else the remembered state of that generation
    (`Controller.remembers`), which may be one of the member's own.
    shrink_perturb: (s, p): the weights become s times the copied ones plus p times weights drawn for the member, and
    its optimiser begins anew (Ash and Adams 2020). None: a copy as it is. Not with copy `hypers`, which copies no
    weights; a member that is its own donor shrinks its own.
    """

    member: int
    donor: int
    copy: CopyWhat
    values: Values
    reason: str
    donor_generation: int | None = None
    shrink_perturb: tuple[float, float] | None = None


@dataclass(frozen=True)
class Mutate:
    """Keep the weights and go on with `values`."""

    member: int
    values: Values
    reason: str


@dataclass(frozen=True)
class Restart:
    """Begin again with fresh weights, a fresh optimiser and `values`. until_frames: as with `Continue`."""

    member: int
    values: Values
    reason: str
    until_frames: int | None = None


@dataclass(frozen=True)
class Stop:
    """Train no more. The weights are kept; the slot goes to another member."""

    member: int
    reason: str


@dataclass(frozen=True)
class Evaluate:
    """Learn nothing until the next decision, whatever it is, and play with the weights as they are.

    The objective is then of the whole episodes that begin meanwhile. episodes: at least so many, equally many of each
    of the member's environments.
    """

    member: int
    episodes: int
    reason: str


StateKey = tuple[int, int]
"""(member, generation)"""

Decision = Continue | Replace | Mutate | Restart | Stop | Evaluate

DECISIONS = ("continue", "replace", "mutate", "restart", "stop", "evaluate")
"""Their names in a journal."""


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
    """Return the fields of a decision, and its kind under "decision"."""
    return {"decision": type(decision).__name__.lower(), **asdict(decision)}


def values_of(decision: Decision) -> Values | None:
    """Return the values that a decision gives its member; None if it leaves them as they are."""
    return decision.values if isinstance(decision, Replace | Mutate | Restart) else None


def donor_of(decision: Decision) -> tuple[int, int | None] | None:
    """Return (donor, generation of its remembered state or None for the present one); None without a donor."""
    return (decision.donor, decision.donor_generation) if isinstance(decision, Replace) else None


def decision_from_dict(record: object, place: str = "a decision") -> Decision:
    """Invert `decision_to_dict`; accepts numbers as a journal writes them.

    place: where it stands, for the ConfigError that is raised for anything that is no decision.
    """
    given = Fields(record, place)
    member, reason, kind = given.whole("member"), given.text("reason"), given.text("decision")
    match kind:
        case "continue":
            return Continue(member, reason, given.whole_or_none("until_frames"))
        case "replace":
            copy = given.text("copy")
            if copy not in get_args(CopyWhat):
                raise ConfigError(f"copy of {place} is {copy!r:.40}: it should be weights, hypers or both")
            return Replace(
                member,
                given.whole("donor"),
                cast("CopyWhat", copy),
                given.values("values"),
                reason,
                given.whole_or_none("donor_generation"),
                _pair_or_none(given, "shrink_perturb"),
            )
        case "mutate":
            return Mutate(member, given.values("values"), reason)
        case "restart":
            return Restart(member, given.values("values"), reason, given.whole_or_none("until_frames"))
        case "stop":
            return Stop(member, reason)
        case "evaluate":
            return Evaluate(member, given.whole("episodes"), reason)
    raise ConfigError(f"decision of {place} is {kind!r:.40}: it should be one of {', '.join(DECISIONS)}")


def _pair_or_none(given: Fields, name: str) -> tuple[float, float] | None:
    if not given.has(name):
        return None
    first, second = (*given.numbers(name), math.nan, math.nan)[:2]
    return first, second


def report_from_dict(record: object, place: str = "a report") -> PopulationReport:
    """Invert `dataclasses.asdict` on a report; accepts numbers as a journal writes them, and members without values.

    Raises ConfigError.
    """
    given = Fields(record, place)
    return PopulationReport(given.whole("frames"), tuple(map(_member_report, given.objects("members"))))


def _member_report(given: Fields) -> MemberReport:
    return MemberReport(
        given.whole("member"),
        given.whole("frames"),
        given.numbers("objectives"),
        given.whole("episodes"),
        given.whole("generation"),
        given.values("values") if given.has("values") else {},
        given.number_or_none("best"),
        given.flag("broken"),
    )
