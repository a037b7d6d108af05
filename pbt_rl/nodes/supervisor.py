"""The supervisor of a run over several machines, which come and go.

MachineLost     its members go on from their copies, in another place at once if there is one
no free place   they go to the packs that serve, and wait there for a slot (`nodes.members`)
a place again   the pack starts without members, and members that wait take its slots
MachineLeaving  copies are made first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

from pbt_rl.nodes.copies import CopyingCheckpoints
from pbt_rl.nodes.members import SpreadComparisons
from pbt_rl.run.fleet import Event, Fleet, LearnerLost, Notice, ReplacesLearners
from pbt_rl.run.lost import LostLearners
from pbt_rl.run.supervisor import Supervisor


@dataclass(frozen=True)
class MachineLost(LearnerLost):
    """A learner is lost with its machine, so that nothing is wrong with it."""

    @property
    def kind(self) -> str:
        """For the journal."""
        return "machine"


@dataclass(frozen=True)
class MachineLeaving(Notice):
    """The machine of a pack will be taken away soon. lost: what will be said then."""

    lost: MachineLost


class Waits(ReplacesLearners, Protocol):
    """A fleet whose learners wait for a machine if there is none."""

    def waits(self, pack: int, /) -> bool:
        """Return whether there is no machine for a pack now."""


class LostMachines(LostLearners):
    """Replaces learners that are lost with their machines, too."""

    _checkpoints: CopyingCheckpoints
    _comparisons: SpreadComparisons

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._leaving: dict[int, tuple[MachineLost, int]] = {}
        """Packs whose machine is about to be taken away -> (why, rounds of copies that were begun before)."""

    def replace(self, fleet: ReplacesLearners, lost: LearnerLost) -> None:
        """See LostLearners."""
        self._leaving.pop(lost.pack, None)
        super().replace(fleet, lost)
        self.scatter(cast("Waits", fleet))

    def _refused(self, lost: LearnerLost) -> str:
        return "" if isinstance(lost, MachineLost) else super()._refused(lost)

    def _count(self, lost: LearnerLost) -> None:
        if isinstance(lost, MachineLost):
            self.count += 1
        else:
            super()._count(lost)

    def found(self, fleet: Waits) -> None:
        """Go on after a learner has started again, which may have room for members that wait."""
        self.scatter(fleet)
        self._comparisons.change_slots()

    def scatter(self, fleet: Waits) -> None:
        """Let packs that serve take the members of those that wait for a machine."""
        slots = self._comparisons.slots
        for pack in range(len(slots.packs)):
            if slots.of(pack) and slots.serving - {pack} and fleet.waits(pack):
                self._comparisons.scatter(pack)
                fleet.replace_learner(pack, self._start_again(pack))

    def leave(self, lost: MachineLost) -> None:
        """Prepare for the loss of a machine that was announced: copies are made, and then its members go elsewhere."""
        self._leaving[lost.pack] = (lost, self._checkpoints.begun)
        self._checkpoints.ask_copy()

    def step(self, fleet: ReplacesLearners) -> None:
        """Leave machines whose loss was announced, once there are copies of what they hold."""
        for lost, begun in [*self._leaving.values()]:
            if self._checkpoints.whole > begun:
                self.replace(fleet, lost)


class SpreadSupervisor(Supervisor):
    """See the head of the file."""

    COMPARISONS = SpreadComparisons
    CHECKPOINTS = CopyingCheckpoints
    LOST = LostMachines
    _lost: LostMachines

    def _step(self, fleet: Fleet) -> None:
        super()._step(fleet)
        self._lost.step(cast("ReplacesLearners", fleet))

    @property
    def _may_save(self) -> bool:
        """The states of members that miss their learner are here."""
        return self._begun

    def _handle(self, fleet: Fleet, event: Event) -> None:
        if isinstance(event, MachineLeaving):
            self._lost.leave(event.lost)
        else:
            super()._handle(fleet, event)

    def _note_ready(self, fleet: Fleet, pack: int, note: str) -> None:
        begun = self._begun
        super()._note_ready(fleet, pack, note)
        if begun:
            self._lost.found(cast("Waits", fleet))
