"""A fleet that looks at the weights of members from outside. Imports no Ray."""

from dataclasses import dataclass, field

from pbt_rl.actors.messages import Acknowledgement, Load, Save, Saved
from pbt_rl.run.fleet import Received
from pbt_rl.run.nodes.node_fleet import NodeFleet, OverNodes

FIRST_ENTRY = 1000
"""Of those that are for what is looked at: the run's own have lower numbers."""


@dataclass
class Replacement:
    """A member that was given the weights of a member of another pack, and what both are then."""

    edit: Load
    given: dict
    """The state that crossed the nodes."""
    found: dict = field(default_factory=dict)
    """Member -> its state once the load is applied, before anybody trains (in serial mode)."""

    def holds(self) -> bool:
        """Whether the donor is as it was and the member is like it, bit for bit."""
        states = [self.found[self.edit.donor], self.found[self.edit.member]]
        return all(same_bits(state, self.given) for state in states)


def same_bits(one, other) -> bool:
    """Return whether two states are alike to the last bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


class WatchedFleet(NodeFleet):
    """Saves donor and member after every replacement across packs. For serial mode: nobody trains meanwhile."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.replacements: list[Replacement] = []
        self._looks: list[tuple[Replacement, int]] = []
        """What was looked at, by the number of its entry: (replacement, member)."""

    def send(self, pack, message):
        """See Fleet."""
        if isinstance(message, Load) and message.entry is not None and message.donor is not None:
            self.replacements.append(Replacement(message, self._pool.read(message.entry)))
        super().send(pack, message)

    def events(self, timeout_seconds):
        """See Fleet. What was saved here concerns nobody else."""
        for event in super().events(timeout_seconds):
            message = event.message if isinstance(event, Received) else None
            if isinstance(message, Saved) and message.key < 0:
                replacement, member = self._looks[-message.key - 1]
                replacement.found[member] = self._pool.read(message.entry)
                continue
            if isinstance(message, Acknowledgement):
                for one in self.replacements:
                    if (message.member, message.generation) == (one.edit.member, one.edit.generation):
                        self._look_at(one)
            yield event

    def _look_at(self, replacement):
        for member in (replacement.edit.donor, replacement.edit.member):
            self._looks.append((replacement, member))
            number = len(self._looks)
            self._pool.grow(FIRST_ENTRY + number + 1)
            packs = self._resolved.plan.packs
            pack = next(n for n, one in enumerate(packs) if member in one.members)
            super().send(pack, Save(member, -number, FIRST_ENTRY + number))


class Watched(OverNodes):
    """A cluster whose fleets are watched."""

    def fleet(self, resolved, start, matchups, pool):
        """See OverNodes."""
        FLEETS.append(WatchedFleet(self.backend, resolved, start, matchups, pool))
        return FLEETS[-1]


FLEETS: list[WatchedFleet] = []
