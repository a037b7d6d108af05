"""Effect of each decision on its member.

Most other modules read a `Change` instead of matching on the kind of a decision.

All decisions of a comparison take effect simultaneously. A copy gets a remembered state, or the state that its donor
had before the comparison, even if the comparison changes or stops the donor.

    decision             weights  values    generation  source
    Continue             keep     -         same        -
    Replace "hypers"     keep     replaced  + 1         the donor
    Replace (others)     copy     replaced  + 1         the donor
    Mutate               keep     replaced  + 1         -
    Restart              fresh    replaced  + 1         -
    Stop                 keep     -         same        -
    Evaluate             keep     -         same        -
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from pbt_rl.controllers.decisions import (
    Continue,
    Decision,
    Evaluate,
    Mutate,
    Replace,
    Restart,
    StateKey,
    Stop,
)
from pbt_rl.controllers.hypers import Values

Weights = Literal["keep", "copy", "fresh"]
DecisionName = Literal["continue", "replace", "mutate", "restart", "stop", "evaluate"]


@dataclass(frozen=True)
class Change:
    """Effect of one decision on its member.

    Every decision ends the member's wait for a decision, and resets `MemberReport.best`.
    """

    member: int
    decision: DecisionName
    generation: int
    """Generation of the member after the decision."""
    weights: Weights = "keep"
    """`copy`: weights, optimiser state and normalisers of `source`. `fresh`: initialised weights."""
    source: StateKey | None = None
    """(member, generation) of the copied state. With weights `keep`, only the values of this state are copied. None:
    nothing is copied."""
    remembered: bool = False
    """True: `source` is a remembered state. False: `source` is the present state of the donor."""
    values: Values | None = None
    """New values. None: the values and the generation stay the same."""
    until_frames: int | None = None
    """The member pauses at this frame count until the next decision about the member. None: no limit."""
    stopped: bool = False
    """The member stops training forever."""
    evaluates: int = 0
    """Number of evaluation episodes. The member does not learn until the next decision about the member. 0: the member
    learns."""
    phase: int | None = None
    """Phase or rung of a search that the member enters or continues."""
    completed: bool = False
    """True if a stopped member finished its training in a search."""
    score: float | None = None
    """Last score of a stopped member in a search. None: not a stop in a search, or no score is known."""
    place: tuple[int, int] | None = None
    """(rank, number of ranked scores) of a stopped member. Rank 1 is the best. None: the score was not ranked."""

    @property
    def weights_from(self) -> StateKey | None:
        """(member, generation) of the state whose weights are copied. None: no weights are copied."""
        return self.source if self.weights == "copy" else None


def changes(decisions: Sequence[Decision], generations: Mapping[int, int]) -> list[Change]:
    """Return the change of each decision, in the order of the decisions.

    generations: generation of each member with a decision, and of each donor, before the comparison.
    """
    return [_change(decision, generations) for decision in decisions]


def given(values: Values, members: Iterable[tuple[int, int, Values]]) -> list[Change]:
    """Return the changes for values that the user sets when a run resumes.

    members: (member, generation, all values of the member before the resume). `Change.decision` is "continue" instead
    of "mutate", because the controller did not decide the change.
    """
    return [
        Change(member, "continue", generation + 1, values={**own, **values})
        for member, generation, own in members
    ]


def _change(decision: Decision, generations: Mapping[int, int]) -> Change:
    member = decision.member
    now = generations[member]
    match decision:
        case Continue(until_frames=until, phase=phase):
            return Change(member, "continue", now, until_frames=until, phase=phase)
        case Replace(donor=donor, copy=copy, values=values, donor_generation=generation):
            return Change(
                member,
                "replace",
                now + 1,
                "keep" if copy == "hypers" else "copy",
                (donor, generations[donor] if generation is None else generation),
                remembered=generation is not None,
                values=values,
            )
        case Mutate(values=values):
            return Change(member, "mutate", now + 1, values=values)
        case Restart(values=values, until_frames=until, phase=phase):
            return Change(member, "restart", now + 1, "fresh", values=values, until_frames=until, phase=phase)
        case Stop(completed=completed, score=score, place=place):
            return Change(member, "stop", now, stopped=True, completed=completed, score=score, place=place)
        case Evaluate(episodes=episodes):
            return Change(member, "evaluate", now, evaluates=episodes)
        case _:
            assert_never(decision)
