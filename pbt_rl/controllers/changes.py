"""The meaning of decisions: what each one does to its member, and what a search says by it of the member's way.

No other module asks which kind a decision is: it asks for its change.

All decisions of a comparison hold at once: a donor gives the state that it had before any of them, even if the same
comparison changes or stops it.

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
    """One decision, interpreted.

    A decision also ends the wait of its member and begins the next interval of `MemberReport.best`, whatever else it
    does.
    """

    member: int
    decision: DecisionName
    generation: int
    """The member's generation after the decision."""
    weights: Weights = "keep"
    """`copy`: the weights, optimiser state and normalisers of `source`."""
    source: StateKey | None = None
    """The state that the decision takes weights or values from; with `keep`, values only."""
    remembered: bool = False
    """`source` is a state that the controller had remembered; else it is the donor's present state."""
    values: Values | None = None
    """The values from now on; None if they, and the generation, stay as they are."""
    until_frames: int | None = None
    """With this many frames the member waits for its next decision; None for no limit."""
    stopped: bool = False
    """The member trains no more."""
    evaluates: int = 0
    """Until its next decision the member learns nothing and plays so many whole episodes; 0: it learns."""
    phase: int | None = None
    """Of a search: the phase or rung that the member is in from now on."""
    completed: bool = False
    """With `stopped`: a search has trained the member to its end."""
    score: float | None = None
    """With `stopped`: what a search judged the member by."""
    place: tuple[int, int] | None = None
    """With `stopped`: the place of the score, and of how many."""

    @property
    def weights_from(self) -> StateKey | None:
        """The state whose weights are copied; None if none are."""
        return self.source if self.weights == "copy" else None


def changes(decisions: Sequence[Decision], generations: Mapping[int, int]) -> list[Change]:
    """Return one change per decision, in their order.

    generations: before the comparison, of every member that a decision names as its member or as a present donor.
    """
    return [_change(decision, generations) for decision in decisions]


def given(values: Values, members: Iterable[tuple[int, int, Values]]) -> list[Change]:
    """Return the changes by which the user gives members some values by hand. members: id, generation, all values.

    No controller has decided them: they count as no mutation.
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
