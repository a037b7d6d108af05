"""What a controller sees and what it may say.

A controller is pure: it reads a report, draws from its own seeded generator, and answers decisions. The
supervisor applies them; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from pbt_rl.pbt.hypers import Values

CopyWhat = Literal["weights", "hypers", "both"]


@dataclass(frozen=True)
class MemberReport:
    """One member at the moment of a report.

    frames: emulator frames this member has trained on, over all its generations.
    objectives: true objectives of the episodes that began after the member's last change, oldest first, at
    most the window of `--pbt.objective-episodes`. May hold NaN or infinities if an environment gives them.
    episodes: how many such episodes have finished (may exceed the window).
    generation: how many times the member's weights or values were changed.
    best: the highest mean of `objectives` since the last comparison or change (None without one).
    broken: its weights or losses are not finite any more: it cannot learn.
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
    """The population at one moment. `members` are in order of their id; stopped ones are absent."""

    frames: int
    """The least frames of any member: the clock of synchronous rules."""
    members: tuple[MemberReport, ...]


@dataclass(frozen=True)
class Continue:
    """Train on, unchanged.

    until_frames: with this many frames the member stops and waits for the next decision (None: no limit). A
    slot that it leaves goes to another member.
    """

    member: int
    reason: str
    until_frames: int | None = None


@dataclass(frozen=True)
class Replace:
    """The member becomes a copy of the donor (`copy` says of what) and goes on with `values`.

    `values` are final: what the member has after the decision, whatever was copied.
    donor_generation: None for the donor as it is now; else for the remembered state of that generation
    (`Controller.remembers`), which may be the member's own.
    """

    member: int
    donor: int
    copy: CopyWhat
    values: Values
    reason: str
    donor_generation: int | None = None


@dataclass(frozen=True)
class Mutate:
    """Keep the weights, go on with `values`."""

    member: int
    values: Values
    reason: str


@dataclass(frozen=True)
class Restart:
    """Fresh weights and optimiser, with `values`. until_frames: as with `Continue`."""

    member: int
    values: Values
    reason: str
    until_frames: int | None = None


@dataclass(frozen=True)
class Stop:
    """The member trains no more. Its weights are kept; a slot that it leaves goes to another member."""

    member: int
    reason: str


StateKey = tuple[int, int]
"""(member, generation)"""

Decision = Continue | Replace | Mutate | Restart | Stop

_BY_NAME: dict[str, type[Decision]] = {
    "continue": Continue,
    "replace": Replace,
    "mutate": Mutate,
    "restart": Restart,
    "stop": Stop,
}


class Controller(Protocol):
    """Decides who changes. Deterministic under its seed and the reports it was given."""

    def initial(self, num_members: int) -> list[Values]:
        """Values of the members at the start, in order of id. Called once, first."""

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Decide. Called often; most answers are empty. At most one decision a member."""

    def remembers(self) -> frozenset[StateKey]:
        """States to keep in host memory, as they are at the end of the present `observe`.

        Asked after every comparison. A key that was there before is kept as it was then; one that is new must be
        a member's present generation, as it is before the decisions just made; all others are forgotten.
        """


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Fields of a decision, and which of the five it is under "decision"."""
    return {"decision": type(decision).__name__.lower(), **asdict(decision)}


def decision_from_dict(record: Mapping[str, Any]) -> Decision:
    """Inverse of `decision_to_dict`; takes numbers as a journal writes them."""
    fields = {k: v for k, v in record.items() if k != "decision"}
    if "values" in fields:
        fields["values"] = _values(fields["values"])
    return _BY_NAME[record["decision"]](**fields)


def report_from_dict(record: Mapping[str, Any]) -> PopulationReport:
    """Inverse of `dataclasses.asdict` on a report; takes numbers as a journal writes them."""
    members = (
        MemberReport(
            **{
                **m,
                "objectives": tuple(map(float, m["objectives"])),
                "values": _values(m["values"]),
                "best": None if m["best"] is None else float(m["best"]),
            }
        )
        for m in record["members"]
    )
    return PopulationReport(record["frames"], tuple(members))


def _values(record: Mapping[str, Any]) -> Values:
    return {name: float(value) for name, value in record.items()}
