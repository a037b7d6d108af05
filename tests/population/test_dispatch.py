"""Tests for what learners are told of decisions, which states are kept meanwhile, and that all of them are let go."""

from types import SimpleNamespace

import numpy as np
import pytest

from pbt_rl.actors.messages import Acknowledgement, EvaluateMember, Load, Save, Saved, SetValues, TrainUntil
from pbt_rl.actors.state_pool import Counts, MemberSnapshot, SnapshotHeader
from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.decisions import Continue, Decision, Evaluate, Mutate, Replace, Restart, Stop
from pbt_rl.controllers.state import restore_state, save_state
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.population import Population
from pbt_rl.population.slots import Slots
from pbt_rl.population.store import Store
from tests.helpers.states import FakeInitialiser, FakePool

VALUES = {"learning_rate": 0.5}


class Desk:
    """A dispatch for members on packs, member % packs, what it sent, and learners that do what they are told.

    What a learner holds in a slot is a number: that of the first to have had the weights.
    """

    def __init__(self, members: int = 4, packs: int = 2, slots: int | None = None, saved=()) -> None:
        self.sent: list[tuple] = []
        self.population = Population([{"learning_rate": 0.1}] * members, 10, 1)
        of_packs = [tuple(range(p, members, packs)) for p in range(packs)]
        plan = [SimpleNamespace(members=mine, slots=slots or len(mine)) for mine in of_packs]
        self.slots = Slots(plan, self.population)
        self.dispatch = Dispatch(self.population, self.slots, self._send)
        self.slots.serving.update(range(packs))
        self.pool = FakePool()
        self.store = Store(self.pool, FakeInitialiser())
        self.dispatch.open_store(self.store, dict(saved), "at_1" if saved else None)
        self.holds: dict[tuple[int, int], tuple[int, float]] = {}
        """(pack, slot) -> (member, its weights)."""
        self.unanswered: list = []
        self.parked: list[Acknowledgement] = []
        """Acknowledgements of parked members."""
        self.frames: dict[int, int] = {}
        """Member -> its frames as its learner knows them."""
        for pack in range(packs):
            for load in self.dispatch.first_loads(pack):
                if load is not None:
                    self._carry_out(pack, load)
            self.dispatch.started(pack)
        self.unanswered.clear()

    def _send(self, pack, message) -> None:
        self.sent.append((pack, message))
        self._carry_out(pack, message)

    def _carry_out(self, pack, message) -> None:
        match message:
            case Load(slot, None):
                self.holds.pop((pack, slot))
            case Load(slot, member, generation):
                if message.entry is not None:
                    weights = float(self.pool.read(message.entry)["param"][0])
                elif message.of_slot is not None:
                    weights = self.holds[pack, message.of_slot][1]
                else:
                    weights = FakeInitialiser.number(*message.initialised)
                self.holds[pack, slot] = (member, weights)
                self.unanswered.append((pack, ack(member, generation)))
            case SetValues(member, generation):
                self.unanswered.append((pack, ack(member, generation)))
            case Save(member, key, entry):
                (weights,) = [w for m, w in self.holds.values() if m == member]
                arrays = {"param": np.full(2, weights)}
                counts = Counts(self.frames.get(member, 0))
                self.unanswered.append((pack, (Saved(key, entry), arrays, counts)))
                if pack not in self.late:
                    self.pool.write(entry, arrays, counts)

    late: frozenset[int] = frozenset()
    """Packs whose learner has written nothing yet of what it was told to save."""

    def enact(self, *decisions: Decision, remembered=()) -> list[tuple]:
        made = changes(decisions, self.population.generations)
        self.parked = self.dispatch.enact(made, frozenset(remembered))
        return self.take()

    def take(self) -> list[tuple]:
        """Return what was sent since the last call: (pack, message)."""
        sent, self.sent[:] = [*self.sent], []
        return sent

    def answer(self) -> None:
        """Have everything answered."""
        while self.unanswered:
            _, answer = self.unanswered.pop(0)
            if isinstance(answer, Acknowledgement):
                self.dispatch.applied(answer)
            else:
                saved, arrays, counts = answer
                self.pool.write(saved.entry, arrays, counts)
                self.dispatch.saved(saved)
        assert not self.dispatch.busy

    def lose(self, pack: int) -> list[dict]:
        """Lose a learner with all that it has not answered; another one begins."""
        self.unanswered = [one for one in self.unanswered if one[0] != pack]
        self.holds = {place: held for place, held in self.holds.items() if place[0] != pack}
        lost = self.dispatch.lost(pack)
        before = len(self.unanswered)
        for load in self.dispatch.first_loads(pack):
            if load is not None:
                self._carry_out(pack, load)
        del self.unanswered[before:]
        self.dispatch.started(pack)
        return lost

    def swap(self, pack: int, slot: int, leaves: int, enters: int) -> None:
        """Let only these two members be due for a swap."""
        assert self.slots.members_of(pack)[slot] == leaves
        members = self.population.members
        waiting = [members[m] for m in self.slots.of(pack) if members[m].parked and m != enters]
        for member in [members[leaves], *waiting]:
            member.until_frames = member.frames
        ((there, swap),) = self.dispatch.swap_slots()
        assert (there, swap.slot, swap.leaves, swap.enters) == (pack, slot, leaves, enters)
        for member in [members[leaves], *waiting]:
            member.until_frames = None

    def weights(self, member: int) -> float:
        """What a member acts with, or has in the store."""
        held = [w for m, w in self.holds.values() if m == member]
        if held:
            return held[0]
        return float(self.dispatch.state_of(member).read()["param"][0])

    def train(self, member: int, frames: int = 100) -> None:
        """Let a member learn: it has other weights then."""
        for place, (number, weights) in self.holds.items():
            if number == member:
                self.holds[place] = (number, weights + 0.25)
        self.population.members[member].frames += frames

    def checkpoint(self, *, whole=True) -> None:
        """Save everything, at once."""
        self.end_checkpoint(self.begin_checkpoint(), whole=whole)

    def begin_checkpoint(self) -> list:
        """Have every member saved."""
        wanted = self.dispatch.begin_checkpoint(self.slots.serving)
        for pack in range(len(self.slots.packs)):
            while self.dispatch.save_next(pack):
                pass
        self.answer()
        return wanted

    def end_checkpoint(self, wanted: list, *, whole=True) -> None:
        """Keep what was saved, or nothing of it."""
        saved = {}
        for state, header in wanted:
            arrays = {name: array.copy() for name, array in state.read().items()} if whole else {}
            snapshot = MemberSnapshot(header, arrays)
            saved[header.member, header.generation if header.remembered else None] = lambda one=snapshot: one
            state.release()
        self.dispatch.end_checkpoint(saved if whole else None, "at_1")


def ack(member: int, generation: int) -> Acknowledgement:
    return Acknowledgement(member, None, generation, 0.0, {}, {}, {}, donor_unchanged=True)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def crowd() -> Desk:
    """Six members on one pack of two slots: 0 and 1 hold them."""
    return Desk(6, 1, slots=2)


def replace(member: int, donor: int, copy="both", of=None) -> Replace:
    return Replace(member, donor, copy, VALUES, "", of)


def told(sent: list[tuple]) -> list[tuple]:
    """The messages in short."""
    short = []
    for pack, message in sent:
        match message:
            case SetValues(member):
                short.append((pack, "values", member))
            case Save(member):
                short.append((pack, "save", member))
            case Load(_, member):
                how = "entry" if message.entry is not None else "drawn" if message.of_slot is None else "slot"
                short.append((pack, "load", member, how if member is not None else None))
            case _:
                short.append((pack, message))
    return short


def test_each_decision_becomes_its_message(desk):
    restart = Restart(2, VALUES, "", until_frames=70)
    sent = desk.enact(Continue(0, ""), Mutate(1, VALUES, ""), restart, replace(3, 1))
    *first, fourth = told(sent)
    assert first == [(1, "values", 1), (0, TrainUntil(2, 70)), (0, "load", 2, "drawn")]
    assert fourth == (1, "load", 3, "slot")
    assert sent[2][1].initialised == (2, 1)
    assert (sent[3][1].of_slot, sent[3][1].donor, sent[3][1].values) == (0, 1, VALUES)
    assert desk.dispatch.busy
    assert [m.generation for m in desk.population.members] == [0, 1, 1, 1]
    assert (desk.dispatch.replacements, desk.dispatch.mutations) == (1, 1)
    desk.answer()
    assert not desk.dispatch.busy
    ((pack, sent),) = desk.enact(replace(0, 1, "hypers"))
    assert (pack, sent) == (0, SetValues(0, 1, VALUES, 1))


def test_limits_and_stops_change_nothing_on_a_learner(desk):
    assert desk.enact(Continue(0, "", until_frames=50), Stop(1, "")) == [(0, TrainUntil(0, 50))]
    members = desk.population.members
    assert (members[0].until_frames, members[1].stopped) == (50, True)
    assert not desk.dispatch.busy
    desk.enact(Continue(0, ""), Restart(2, VALUES, "", until_frames=70))
    assert (members[0].until_frames, members[2].until_frames) == (None, 70)
    desk.enact(Continue(0, "", until_frames=50), Continue(3, "", until_frames=70), Stop(2, ""))
    desk.dispatch.send_limits()
    assert desk.take() == [(0, TrainUntil(0, 50)), (1, TrainUntil(3, 70))]
    desk.dispatch.send_limits(1)
    assert desk.take() == [(1, TrainUntil(3, 70))]


def test_a_parked_member_is_evaluated_once_it_holds_a_slot(crowd):
    assert crowd.enact(Evaluate(0, 2, ""), Evaluate(2, 2, "")) == [(0, EvaluateMember(0, begins=True))]
    crowd.swap(0, 1, 1, 2)
    assert crowd.take()[-1] == (0, EvaluateMember(2, begins=True))
    crowd.answer()
    crowd.swap(0, 1, 2, 1)
    crowd.take()
    assert crowd.enact(Continue(0, ""), Continue(2, "")) == [(0, EvaluateMember(0, begins=False))]


def test_a_restored_dispatch_knows_what_the_controller_wants(desk):
    desk.enact(Continue(0, ""), remembered=[(1, 0), (2, 0)])
    desk.dispatch.unproven.add(3)
    other = Desk()
    restore_state(other.dispatch, save_state(desk.dispatch))
    assert other.dispatch.remembered == {(1, 0), (2, 0)}
    assert other.dispatch.unproven == {3}, "changes that are still to be proven"
    state = save_state(desk.dispatch)
    state["remembered"] = [[9, 0]]
    with pytest.raises(ValueError, match="member 9"):
        restore_state(other.dispatch, state)


def test_a_donor_that_changes_itself_is_saved_before_it_is_loaded_over(desk):
    """0 copies 2, 2 copies 0, and 1 copies 3, which restarts: each donor as it was."""
    sent = desk.enact(replace(0, 2), replace(1, 3), replace(2, 0), Restart(3, VALUES, ""))
    assert told(sent) == [*((m % 2, "save", m) for m in (0, 2, 3)), (1, "load", 3, "drawn")]
    desk.answer()
    assert told(desk.take()) == [(m % 2, "load", m, "entry") for m in (2, 0, 1)], "once it is saved"
    assert [desk.weights(m) for m in range(4)] == [2, 3, 0, FakeInitialiser.number(3, 1)]
    assert desk.store.entries == 0


def test_a_state_crosses_to_another_pack_once_it_is_saved(desk):
    desk.late = frozenset({1})
    sent = desk.enact(replace(0, 1), replace(2, 1), Mutate(3, VALUES, ""))
    assert told(sent) == [(1, "save", 1), (1, "values", 3)], "one state for both"
    desk.answer()
    assert told(desk.take()) == [(0, "load", 0, "entry"), (0, "load", 2, "entry")]
    assert (desk.weights(0), desk.weights(2)) == (1, 1)
    assert desk.store.entries == 0


def test_a_member_that_copies_another_keeps_its_own_frames(crowd):
    crowd.train(0, 300)
    crowd.frames = {0: 300}
    crowd.enact(replace(3, 0))
    crowd.answer()
    assert crowd.population.members[3].frames == 0
    crowd.frames = {0: 340}
    crowd.swap(0, 0, 0, 4)
    crowd.answer()
    assert crowd.population.members[0].frames == 340, "what it trained since its last report"


def test_a_change_of_a_parked_member_is_proven_when_it_enters(crowd):
    assert crowd.enact(Mutate(3, VALUES, "")) == []
    (parked,) = crowd.parked
    assert (parked.member, parked.parked, parked.generation) == (3, True, 1)
    assert not crowd.dispatch.busy
    crowd.swap(0, 0, 0, 3)
    (_, load) = crowd.take()[-1]
    assert (load.member, load.generation, load.values) == (3, 1, VALUES)
    pending = crowd.dispatch.applied(ack(3, 1))
    assert (pending.decided, pending.proves) == (None, True)
    crowd.unanswered = [one for one in crowd.unanswered if not isinstance(one[1], Acknowledgement)]
    crowd.swap(0, 1, 1, 4)
    assert not crowd.dispatch.applied(ack(4, 0)).proves, "nothing was changed about it"


def test_what_the_controller_remembers_is_kept_before_and_dropped_after(desk):
    desk.train(2)
    sent = desk.enact(Restart(2, VALUES, ""), remembered=[(1, 0), (2, 0)])
    assert told(sent) == [(1, "save", 1), (0, "save", 2), (0, "load", 2, "drawn")]
    desk.answer()
    assert desk.store.entries == 2
    assert told(desk.enact(replace(3, 2, of=0), remembered=[(1, 0)])) == [(1, "load", 3, "entry")]
    assert desk.weights(3) == 2.25
    desk.answer()
    assert desk.store.entries == 1
    desk.checkpoint()
    assert desk.store.entries == 1
    desk.enact(Continue(0, ""))
    assert desk.store.entries == 0


def test_a_member_that_changes_during_a_checkpoint_is_saved_before(desk):
    wanted = desk.dispatch.begin_checkpoint({0, 1})
    sent = desk.enact(replace(0, 2), Mutate(1, VALUES, ""))
    assert told(sent) == [(0, "save", 0), (0, "load", 0, "slot"), (1, "save", 1), (1, "values", 1)]
    desk.train(3)
    assert [desk.dispatch.save_next(pack) for pack in (0, 0, 1, 1)] == [True, False, True, False]
    desk.answer()
    found = {header.member: float(state.read()["param"][0]) for state, header in wanted}
    assert found == {0: 0, 1: 1, 2: 2, 3: 3.25}, "who learns on comes as now"
    headers = {header.member: (header.generation, header.values) for _, header in wanted}
    assert headers[0] == headers[1] == (0, {"learning_rate": 0.1})
    desk.end_checkpoint(wanted, whole=False)
    assert desk.store.entries == 0


def test_who_leaves_its_slot_during_a_checkpoint_is_saved_once_for_both(crowd):
    wanted = crowd.dispatch.begin_checkpoint({0})
    crowd.swap(0, 0, 0, 3)
    assert [one[1:3] for one in told(crowd.take())] == [("save", 0), ("load", 3)]
    crowd.answer()
    assert crowd.store.entries == 1
    assert crowd.dispatch.state_of(0) in {state for state, _ in wanted}
    crowd.end_checkpoint(wanted, whole=False)
    assert crowd.weights(0) == 0
    assert crowd.store.entries == 1


def test_members_that_never_held_a_slot_are_no_part_of_a_checkpoint(crowd):
    wanted = crowd.begin_checkpoint()
    assert [header.member for _, header in wanted] == [0, 1]
    crowd.end_checkpoint(wanted, whole=False)
    crowd.enact(Restart(3, VALUES, ""))
    crowd.answer()
    members = [header.member for _, header in crowd.begin_checkpoint()]
    assert members == [0, 1, 3], "its weights are not the first ones"


def test_what_a_lost_learner_was_still_saving_is_replaced_by_what_was_saved_before(desk):
    desk.train(0)
    desk.checkpoint()
    desk.train(0)
    desk.late = frozenset({0})
    desk.enact(replace(1, 0), replace(0, 2), remembered=[(0, 0)])
    assert desk.dispatch.busy
    desk.lose(0)
    desk.answer()
    assert (desk.weights(1), desk.weights(0)) == (0.25, 2)
    desk.enact(replace(3, 0, of=0), remembered=[(0, 0)])
    desk.answer()
    assert desk.weights(3) == 0.25


def test_decisions_about_members_of_a_lost_pack_are_settled_without_a_proof(desk):
    desk.enact(Mutate(0, VALUES, ""), replace(2, 1), Mutate(1, VALUES, ""))
    assert desk.dispatch.busy
    desk.lose(0)
    desk.answer()
    assert [m.generation for m in desk.population.members] == [1, 1, 1, 0]
    assert desk.weights(2) == 1
    assert desk.store.entries == 0


def test_a_member_that_was_leaving_its_slot_when_its_learner_was_lost_has_lost_what_was_not_saved(crowd):
    crowd.train(0)
    crowd.late = frozenset({0})
    crowd.swap(0, 0, 0, 2)
    lost = crowd.lose(0)
    assert [(one["member"], one["frames_lost"]) for one in lost] == [(0, 100), (1, 0), (2, 0)]
    assert crowd.weights(0) == 0
    assert crowd.weights(2) == 2


def test_a_member_that_takes_a_slot_has_nothing_in_memory_to_be_restored_from(crowd):
    crowd.train(0)
    crowd.checkpoint()
    crowd.train(0, 50)
    crowd.swap(0, 0, 0, 2)
    crowd.answer()
    crowd.swap(0, 0, 2, 0)
    lost = {one["member"]: (one["frames_lost"], one["from"]) for one in crowd.lose(0)}
    assert lost == {m: (50 * (m == 0), {"checkpoint": "at_1", "member": m}) for m in (0, 1)} | {
        2: (0, {"checkpoint": None, "member": 2})
    }
    assert crowd.weights(0) == 0.25


def test_members_without_a_slot_lose_nothing_with_a_learner(crowd):
    crowd.train(0)
    crowd.swap(0, 0, 0, 2)
    crowd.answer()
    crowd.enact(replace(4, 0))
    crowd.train(2)
    assert [one["member"] for one in crowd.lose(0)] == [1, 2]
    assert (crowd.weights(0), crowd.weights(4), crowd.weights(2)) == (0.25, 0.25, 2)


def test_what_another_pack_copies_arrives_although_its_donor_is_lost_after_the_save(desk):
    desk.train(0)
    desk.enact(replace(1, 0))
    desk.answer()
    desk.lose(0)
    assert (desk.weights(1), desk.weights(0)) == (0.25, 0)


def test_a_resumed_run_begins_as_a_lost_learner_does():
    def reader(member, weights, *, frames, remembered=False):
        header = SnapshotHeader(member, 0, {}, frames, 0, 0, 0, remembered)
        return lambda: MemberSnapshot(header, {"param": np.full(2, weights)})

    saved = {(m, None): reader(m, 7.0 + m, frames=100) for m in (0, 1, 3)}
    saved[1, 0] = reader(1, 5.0, frames=40, remembered=True)
    desk = Desk(saved=saved)
    assert [desk.weights(m) for m in range(4)] == [7, 8, 2, 10], "2 had never trained"
    assert [m.frames for m in desk.population.members] == [100, 100, 0, 100]
    desk.enact(replace(3, 1, of=0), remembered=[(1, 0)])
    desk.answer()
    desk.train(0, 30)
    place = {"checkpoint": "at_1", "member": 1}
    assert desk.lose(1) == [
        {"member": 1, "frames_lost": 0, "from": place},
        {"member": 3, "frames_lost": 0, "from": place | {"generation": 0}},
    ]
    assert [desk.weights(m) for m in range(4)] == [7.25, 8, 2, 5]


def test_initialised_weights_need_no_memory(crowd):
    crowd.enact(replace(3, 5))
    crowd.answer()
    crowd.checkpoint()
    assert crowd.dispatch.state_of(3).seed == (5, 0)
    assert crowd.store.entries == 0


@pytest.mark.parametrize("also", [(), (replace(0, 2),)], ids=["its donor stays", "its donor is replaced too"])
def test_what_a_learner_saves_during_a_checkpoint_is_replaced_by_what_that_has_saved(desk, also):
    """The one before may be deleted as soon as it is whole."""
    desk.train(0)
    wanted = desk.begin_checkpoint()
    desk.train(0)
    desk.late = frozenset({0})
    desk.enact(replace(1, 0), *also)
    desk.end_checkpoint(wanted)
    desk.lose(0)
    desk.answer()
    assert desk.weights(1) == 0.25


def test_members_of_a_pack_without_a_machine_wait_in_others():
    desk = Desk(slots=2)
    desk.train(2)
    desk.checkpoint()
    desk.slots.serving.discard(0)
    desk.dispatch.lost(0)
    desk.dispatch.first_loads(0)
    assert desk.dispatch.scatter(0) == [(0, 1), (2, 1)]
    desk.holds = {place: held for place, held in desk.holds.items() if place[0] == 1}
    assert (desk.weights(0), desk.weights(2)) == (0, 2.25)
    desk.swap(1, 1, 3, 2)
    desk.answer()
    assert desk.weights(2) == 2.25


def test_a_pack_without_a_learner_is_saved_as_it_would_be_restored(desk):
    desk.train(2)
    desk.checkpoint()
    desk.train(2)
    desk.slots.serving.discard(0)
    desk.dispatch.lost(0)
    desk.dispatch.first_loads(0)
    wanted = desk.dispatch.begin_checkpoint(desk.slots.serving)
    found = {header.member: state.ready and float(state.read()["param"][0]) for state, header in wanted}
    assert found == {0: 0, 1: False, 2: 2.25, 3: False}


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_member_has_what_a_simple_book_says_and_nothing_is_left(seed):
    rng = np.random.default_rng(seed)
    desk = Desk(6, 2, slots=2)
    book = {m: desk.weights(m) for m in range(6)}
    safe = dict(book)
    """What each goes on from if its learner is lost."""
    past: dict[tuple[int, int], tuple[float, float]] = {}
    """What is remembered, and what a copy of it goes on from."""
    for _ in range(25):
        on_slot = [m for m, _ in desk.holds.values()]
        for member in on_slot:
            if rng.random() < 0.5:
                desk.train(member)
                book[member] = desk.weights(member)
        before, safe_before, kept = dict(book), dict(safe), dict(past)
        members = desk.population.members
        wanted = {key for key in past if rng.random() < 0.6}
        wanted |= {(m, members[m].generation) for m in range(6) if rng.random() < 0.2}
        past = {key: kept.get(key, (before[key[0]], safe_before[key[0]])) for key in wanted}
        decisions = []
        for member in range(6):
            kind = rng.choice(["continue", "copy", "remembered", "restart", "mutate"])
            donor = int(rng.integers(6))
            if kind == "copy":
                decisions.append(replace(member, donor))
                book[member], safe[member] = before[donor], safe_before[donor]
            elif kind == "remembered" and kept.keys() & wanted:
                key = min(kept.keys() & wanted)
                decisions.append(replace(member, key[0], of=key[1]))
                book[member], safe[member] = kept[key]
            elif kind == "restart":
                decisions.append(Restart(member, VALUES, ""))
                book[member] = safe[member] = FakeInitialiser.number(member, members[member].generation + 1)
            elif kind == "mutate":
                decisions.append(Mutate(member, VALUES, ""))
        desk.enact(*decisions, remembered=wanted)
        desk.answer()
        for pack in range(2):
            out = [m for m in range(pack, 6, 2) if m not in [h for h, _ in desk.holds.values()]]
            if rng.random() < 0.6:
                slot = int(rng.integers(2))
                desk.swap(pack, slot, desk.holds[pack, slot][0], int(rng.choice(out)))
        desk.answer()
        assert {m: desk.weights(m) for m in range(6)} == book
        if rng.random() < 0.3:
            whole = bool(rng.random() < 0.8)
            desk.checkpoint(whole=whole)
            if whole:
                safe, past = dict(book), {key: (now, now) for key, (now, _) in past.items()}
        if rng.random() < 0.2:
            pack = int(rng.integers(2))
            book |= {m: safe[m] for m, _ in [held for place, held in desk.holds.items() if place[0] == pack]}
            desk.lose(pack)
    desk.enact()
    desk.answer()
    states = {desk.dispatch.state_of(member) for member in range(6)} - {None}
    assert desk.store.entries == sum(state.seed is None for state in states)
