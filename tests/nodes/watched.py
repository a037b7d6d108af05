"""A fleet that looks at the weights of members from outside. Imports no Ray."""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from pbt_rl.nodes.fleet import NodeFleet
from pbt_rl.nodes.train import OverNodes
from pbt_rl.run.fleet import Received
from pbt_rl.wire.messages import Applied, Edit, ExportMember, MemberExported


@dataclass
class Replacement:
    """A member that was given the weights of a member of another pack, and what both are then."""

    edit: Edit
    given: dict
    """The state that crossed the nodes."""
    found: dict = field(default_factory=dict)
    """Member -> its state once the edit is applied, before anybody trains (in serial mode)."""

    def holds(self) -> bool:
        """Whether the donor is as it was and the member is like it, bit for bit."""
        states = [self.found[self.edit.donor], self.found[self.edit.member]]
        return all(same_bits(state, self.given) for state in states)


def same_bits(one, other) -> bool:
    """Return whether two states are alike to the last bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


class WatchedFleet(NodeFleet):
    """Exports donor and member after every replacement across packs. For serial mode: nobody trains meanwhile."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.replacements: list[Replacement] = []
        self._exports = defaultdict(deque)
        """Pack -> what its next exports are for: a replacement, or None if the run asked for it."""
        self._pack_of = {}

    def send(self, pack, message):
        """See Fleet."""
        if isinstance(message, ExportMember):
            self._exports[pack].append(None)
        if isinstance(message, ExportMember | Edit):
            self._pack_of[message.member] = pack
        if isinstance(message, Edit) and message.weights == "import" and message.donor_generation is None:
            self.replacements.append(Replacement(message, dict(self._exchange[message.donor])))
        super().send(pack, message)

    def events(self, patience_seconds):
        """See Fleet. What was exported here concerns nobody else."""
        for event in super().events(patience_seconds):
            message = event.message if isinstance(event, Received) else None
            if isinstance(message, MemberExported):
                replacement = self._exports[event.pack].popleft()
                if replacement is not None:
                    member = message.header.member
                    replacement.found[member] = self._exchange.pop(member)
                    continue
            if isinstance(message, Applied):
                for one in self.replacements:
                    if (message.member, message.generation) == (one.edit.member, one.edit.generation):
                        self._look_at(one)
            yield event

    def _look_at(self, replacement):
        for member in (replacement.edit.donor, replacement.edit.member):
            pack = self._pack_of[member]
            super().send(pack, ExportMember(member, None))
            self._exports[pack].append(replacement)


class Watched(OverNodes):
    """A cluster whose fleets are watched."""

    def fleet(self, resolved, start, matchups):
        """See OverNodes."""
        FLEETS.append(WatchedFleet(self.engine, resolved, start, matchups))
        return FLEETS[-1]


FLEETS: list[WatchedFleet] = []
