"""The way of decisions to the learners: each becomes edits of members, sent in order, one comparison at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pbt_rl.pbt.decisions import Continue, Decision, Mutate, Replace, Restart, StateKey, Stop
from pbt_rl.population.population import Population
from pbt_rl.wire.messages import (
    Applied,
    Edit,
    ExportMember,
    ForgetMember,
    RememberMember,
    ToLearner,
    TrainUntil,
)

BORROWED = -1
"""Remembered under this instead of a generation: a donor that is itself changed by the same comparison."""


@dataclass
class Pending:
    """An edit on its way to a learner."""

    edit: Edit
    decided: float
    """time.perf_counter() when the controller had decided."""
    crosses: bool
    """The donor is on another pack: its state is fetched first."""


class Dispatch:
    """Counts decisions as made and has them applied.

    A donor is what it was before any decision of its comparison: one that changes itself is remembered first. What
    the controller wants remembered is kept before anything is applied, and forgotten after all of it was.
    """

    def __init__(
        self, population: Population, pack_of: Mapping[int, int], send: Callable[[int, ToLearner], None]
    ) -> None:
        self._population, self._pack_of, self._send = population, pack_of, send
        self._queue: deque[Pending | tuple[int, ToLearner]] = deque()
        self._sent: dict[int, Pending] = {}
        self._remembered: frozenset[StateKey] = frozenset()
        self.replacements = self.mutations = 0

    @property
    def busy(self) -> bool:
        """Something is still on its way."""
        return bool(self._queue or self._sent)

    def enact(self, decisions: Sequence[Decision], remembered: frozenset[StateKey]) -> None:
        """Take up the decisions of one comparison. remembered: what the controller wants kept from now on."""
        decided = time.perf_counter()
        borrowed = _changing_donors(decisions)
        for key in [
            *sorted(remembered - self._remembered),
            *((donor, BORROWED) for donor in sorted(borrowed)),
        ]:
            self._queue.append((self._pack_of[key[0]], RememberMember(*key)))
        for decision in decisions:
            self._take(decision, borrowed, decided)
        for key in [
            *sorted(self._remembered - remembered),
            *((donor, BORROWED) for donor in sorted(borrowed)),
        ]:
            self._queue.append((self._pack_of[key[0]], ForgetMember(*key)))
        self._remembered = remembered
        self._send_next()

    def _take(self, decision: Decision, borrowed: set[int], decided: float) -> None:
        """Count a decision as made; the member's window starts empty at once."""
        member = self._population.members[decision.member]
        member.best = None
        if isinstance(decision, Continue | Restart):
            member.until_frames = until = decision.until_frames
            if until is not None:
                self._send(self._pack_of[decision.member], TrainUntil(decision.member, until))
        if isinstance(decision, Continue):
            return
        if isinstance(decision, Stop):
            member.stopped = True
            return
        member.change(decision.values)
        weights: Literal["keep", "copy", "import", "fresh"] = "keep"
        donor, donor_generation = None, None
        if isinstance(decision, Replace):
            donor, donor_generation = decision.donor, decision.donor_generation
            if decision.copy != "hypers":
                near = self._pack_of[donor] == self._pack_of[decision.member]
                weights = "copy" if near else "import"
                if donor_generation is None and donor in borrowed:
                    donor_generation = BORROWED
        elif isinstance(decision, Restart):
            weights = "fresh"
        edit = Edit(decision.member, member.generation, weights, donor, decision.values, donor_generation)
        self._queue.append(Pending(edit, decided, crosses=weights == "import"))
        self.replacements += isinstance(decision, Replace)
        self.mutations += isinstance(decision, Mutate)

    def _send_next(self) -> None:
        """Send on what waits; an edit that crosses packs has the exchange memory to itself until it is applied."""
        while self._queue and not any(p.crosses for p in self._sent.values()):
            item = self._queue.popleft()
            if not isinstance(item, Pending):
                self._send(*item)
                continue
            self._sent[item.edit.member] = item
            if item.crosses:
                donor = item.edit.donor
                assert donor is not None
                self._send(self._pack_of[donor], ExportMember(donor, item.edit.donor_generation))
            else:
                self._send(self._pack_of[item.edit.member], item.edit)

    def exported(self, donor: int) -> None:
        """The donor's state lies in the exchange memory."""
        for pending in self._sent.values():
            if pending.crosses and pending.edit.donor == donor:
                self._send(self._pack_of[pending.edit.member], pending.edit)

    def applied(self, applied: Applied) -> Pending:
        """An edit was applied; the next ones go on their way."""
        pending = self._sent.pop(applied.member)
        self._send_next()
        return pending


def _changing_donors(decisions: Sequence[Decision]) -> set[int]:
    """Members whose weights are copied, as they are, by one decision and changed by another."""
    copies = [d for d in decisions if isinstance(d, Replace) and d.copy != "hypers"]
    changed = {d.member for d in copies} | {d.member for d in decisions if isinstance(d, Restart)}
    donors = {d.donor for d in copies if d.donor_generation is None and d.donor != d.member}
    return donors & changed
