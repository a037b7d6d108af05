"""Learners are lost at any moment, with messages, states and a checkpoint on their way."""

from collections import deque

import numpy as np
import pytest

from pbt_rl.actors.messages import Acknowledgement
from pbt_rl.controllers.decisions import Mutate, Restart
from tests.helpers.states import FakeInitialiser
from tests.population.test_dispatch import VALUES, Desk, replace

MEMBERS, PACKS = 6, 2
STEP = 2.0**-20
"""What a member learns at a time. The whole part of its weights tells whose copy it is."""


class SlowDesk(Desk):
    """A desk whose learners carry out one message at a time, and whose answers arrive one at a time.

    ancestor: the whole part of each member's weights, by its decisions. safe: what it has at least after a loss. least:
    what it has at least at present.
    """

    def __init__(self, seed: int) -> None:
        self.queues = [deque() for _ in range(PACKS)]
        super().__init__(MEMBERS, PACKS, slots=2)
        self.rng = np.random.default_rng(seed)
        self.ancestor = {m: float(m) for m in range(MEMBERS)}
        self.least, self.safe = dict(self.ancestor), dict(self.ancestor)
        self.coming: dict[int, float] = {}
        """`safe` once the checkpoint in progress is whole."""
        self.checkpointed: list = []

    def _send(self, pack, message) -> None:
        self.queues[pack].append(message)

    def work(self, pack: int) -> None:
        if self.queues[pack]:
            self._carry_out(pack, self.queues[pack].popleft())

    def hear(self, pack: int) -> None:
        mine = [one for one in self.unanswered if one[0] == pack]
        if not mine:
            return
        self.unanswered.remove(mine[0])
        answer = mine[0][1]
        if isinstance(answer, Acknowledgement):
            self.dispatch.applied(answer)
        else:
            self.dispatch.saved(answer[0])

    def settle(self) -> None:
        while any(self.queues) or self.unanswered:
            for pack in range(PACKS):
                self.work(pack)
                self.hear(pack)

    def learn(self) -> None:
        for place, (member, weights) in self.holds.items():
            self.holds[place] = (member, weights + STEP)

    def decide(self) -> None:
        if self.dispatch.busy:
            return
        least, safe, coming, ancestor = (
            dict(self.least),
            dict(self.safe),
            dict(self.coming),
            dict(self.ancestor),
        )
        decisions = []
        for member in range(MEMBERS):
            donor, kind = (
                int(self.rng.integers(MEMBERS)),
                self.rng.choice(["keep", "copy", "restart", "mutate"]),
            )
            generation = self.population.members[member].generation + 1
            if kind == "copy":
                decisions.append(replace(member, donor))
                self.ancestor[member] = ancestor[donor]
                self.least[member], self.safe[member] = least[donor], safe[donor]
                if coming:
                    self.coming[member] = coming[donor]
            elif kind == "restart":
                decisions.append(Restart(member, VALUES, ""))
                number = FakeInitialiser.number(member, generation)
                self.ancestor[member] = self.least[member] = self.safe[member] = number
                if coming:
                    self.coming[member] = number
            elif kind == "mutate":
                decisions.append(Mutate(member, VALUES, ""))
        self.enact(*decisions)

    def swap_any(self) -> None:
        pack, slot = int(self.rng.integers(PACKS)), int(self.rng.integers(2))
        parked = [m for m in self.slots.of(pack) if self.population.members[m].parked]
        if not self.dispatch.busy:
            self.swap(pack, slot, self.slots.members_of(pack)[slot], int(self.rng.choice(parked)))

    def go_on_saving(self) -> None:
        if not self.checkpointed:
            if not self.dispatch.busy:
                self.coming = dict(self.least)
                self.checkpointed = self.dispatch.begin_checkpoint({0, 1})
            return
        for pack in range(PACKS):
            self.dispatch.save_next(pack)
        if all(state.ready for state, _ in self.checkpointed):
            self.end(whole=bool(self.rng.random() < 0.8))

    def end(self, *, whole: bool) -> None:
        if self.checkpointed:
            self.end_checkpoint(self.checkpointed, whole=whole)
        self.safe = self.coming if whole else self.safe
        self.coming, self.checkpointed = {}, []

    def kill(self, pack: int) -> None:
        """Lose a learner. Members of the other one, and those that are wholly in the store, lose nothing."""
        self.end(whole=False)
        self.queues[pack].clear()
        away = [
            self.dispatch.state_of(m) is None or not self.dispatch.state_of(m).ready for m in range(MEMBERS)
        ]
        before = {place: held for place, held in self.holds.items() if place[0] != pack}
        waits = self.dispatch.busy
        self.lose(pack)
        assert {place: held for place, held in self.holds.items() if place[0] != pack} == before
        for member in range(MEMBERS):
            if away[member] and (
                self.slots.pack_of[member] == pack or waits or self.population.members[member].parked
            ):
                self.least[member] = self.safe[member]

    def check(self) -> None:
        """Every member has weights of whom its decisions say, and at least what is safe."""
        self.settle()
        for member in range(MEMBERS):
            weights = self.weights(member)
            assert int(weights) == int(self.ancestor[member]), member
            assert weights >= self.least[member], member
            self.least[member] = weights


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_on_its_way_a_loss_costs_at_most_what_was_not_saved(seed):
    desk = SlowDesk(seed)
    acts = [desk.decide, desk.swap_any, desk.learn, desk.go_on_saving, desk.go_on_saving]
    for number in range(300):
        for _ in range(3):
            act = [desk.work, desk.hear][int(desk.rng.integers(2))]
            act(int(desk.rng.integers(PACKS)))
        if desk.rng.random() < 0.4:
            acts[int(desk.rng.integers(len(acts)))]()
        if desk.rng.random() < 0.03:
            desk.kill(int(desk.rng.integers(PACKS)))
        if number % 40 == 39:
            desk.check()
    desk.end(whole=False)
    desk.check()
    states = {desk.dispatch.state_of(member) for member in range(MEMBERS)} - {None}
    assert desk.store.entries == sum(state.seed is None for state in states)
    assert not desk.dispatch.busy
