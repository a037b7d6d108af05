"""The protocol of rules of exploration: a member's hypers and shaping change, within their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from pbt_rl.pbt.changes import Change
from pbt_rl.pbt.decisions import MemberReport
from pbt_rl.pbt.hypers import Values


class Explore(Protocol):
    """Makes new values from old ones: returns a new dictionary and leaves the old one alone.

    A dataclass; fields with `init=False` are its state (`pbt.state`). One that learns from the comparisons is also
    `Learning`.
    """

    def initial(self, values: Values, rng: Random) -> Values:
        """Return the values of a member at the start of the run, other than member 0, which keeps the defaults."""

    def mutate(self, values: Values, rng: Random) -> Values:
        """Return the values to go on with; equal to `values` if nothing was drawn to change."""


@runtime_checkable
class Pairing(Protocol):
    """A rule that makes the values of a copy from its own and its donor's. `mutate` is called for the other members."""

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return the values that a member goes on with from the weights of a better one."""


@runtime_checkable
class Learning(Protocol):
    """A rule that is passed every comparison before it mutates, and what came of it afterwards."""

    def before(self, members: Sequence[MemberReport]) -> None:
        """Observe the members that are about to be decided on."""

    def after(self, members: Sequence[MemberReport], changes: Sequence[Change]) -> None:
        """Observe how they changed. members: of the whole report."""
