"""Tests for the order in which changes reach the learners."""

import pytest

from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.decisions import Continue, Decision, Evaluate, Mutate, Replace, Restart, Stop
from pbt_rl.pbt.state import restore_state, save_state
from pbt_rl.population.dispatch import BORROWED, Dispatch
from pbt_rl.population.population import Population
from pbt_rl.wire.messages import (
    AdmitMember,
    Applied,
    Edit,
    EvaluateMember,
    ExportMember,
    ForgetMember,
    ReleaseMember,
    RememberMember,
    TrainUntil,
)

VALUES = {"learning_rate": 0.5}


class Desk:
    """A dispatch for four members on two packs, member % packs, and what it sent."""

    def __init__(self, members: int = 4, packs: int = 2, *, exchange_per_pack: bool = False) -> None:
        self.sent: list[tuple] = []
        self.population = Population([{"learning_rate": 0.1}] * members, 10, 1)
        self.dispatch = Dispatch(
            self.population,
            {m: m % packs for m in range(members)},
            lambda pack, message: self.sent.append((pack, message)),
            exchange_per_pack=exchange_per_pack,
        )

    def enact(self, *decisions: Decision, remembered=()) -> list[tuple]:
        made = changes(decisions, self.population.generations)
        self.dispatch.enact(made, frozenset(remembered))
        return self.take()

    def take(self) -> list[tuple]:
        """Return what was sent since the last call: (pack, message)."""
        sent, self.sent[:] = [*self.sent], []
        return sent

    def lost(self, pack: int, fresh_frames: int = 0) -> list[tuple]:
        def fill(member: int) -> int:
            self.sent.append(("filled", member))
            return fresh_frames

        self.dispatch.lost(pack, fill)
        return self.take()

    def applied(self, member: int) -> list[tuple]:
        self.dispatch.applied(Applied(member, None, 1, 0.0, {}, {}, {}, donor_unchanged=True))
        return self.take()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def replace(member: int, donor: int, copy="both", of=None) -> Replace:
    return Replace(member, donor, copy, VALUES, "", of)


def edit(member: int, weights: str, donor=None, donor_generation=None) -> Edit:
    return Edit(member, 1, weights, donor, VALUES, donor_generation)


def test_each_decision_becomes_its_edit(desk):
    sent = desk.enact(
        Continue(0, ""), Mutate(1, VALUES, ""), Restart(2, VALUES, "", until_frames=70), replace(3, 1)
    )
    assert sent == [
        (0, TrainUntil(2, 70)),
        (1, edit(1, "keep", None, None)),
        (0, edit(2, "fresh", None, None)),
        (1, edit(3, "copy", 1, None)),
    ]
    assert desk.dispatch.busy
    assert [m.generation for m in desk.population.members] == [0, 1, 1, 1]
    assert (desk.dispatch.replacements, desk.dispatch.mutations) == (1, 1)
    for member in (3, 1, 2):
        assert desk.applied(member) == []
    assert not desk.dispatch.busy


def test_weights_that_are_to_be_shrunk_are_shrunk_by_the_learner(desk):
    (sent,) = desk.enact(Replace(3, 1, "both", VALUES, "", shrink_perturb=(0.2, 0.1)))
    assert sent == (1, Edit(3, 1, "copy", 1, VALUES, None, (0.2, 0.1)))


def test_limits_and_stops_change_nothing_on_a_learner(desk):
    assert desk.enact(Continue(0, "", until_frames=50), Stop(1, "")) == [(0, TrainUntil(0, 50))]
    members = desk.population.members
    assert (members[0].until_frames, members[1].stopped) == (50, True)
    assert not desk.dispatch.busy
    desk.enact(Continue(0, ""), Restart(2, VALUES, "", until_frames=70))
    assert (members[0].until_frames, members[2].until_frames) == (None, 70)


def test_new_learners_are_told_the_limits(desk):
    desk.enact(
        Continue(0, "", until_frames=50), Continue(1, ""), Continue(3, "", until_frames=70), Stop(2, "")
    )
    desk.dispatch.send_limits()
    assert desk.take() == [(0, TrainUntil(0, 50)), (1, TrainUntil(3, 70))]


def test_a_parked_member_is_evaluated_once_it_holds_a_slot(desk):
    desk.population.members[1].parked = True
    assert desk.enact(Evaluate(0, 2, ""), Evaluate(1, 2, "")) == [(0, EvaluateMember(0, begins=True))]
    desk.dispatch.send_limits()
    assert desk.take() == [(0, EvaluateMember(0, begins=True))]
    desk.population.members[1].parked = False
    desk.dispatch.send_evaluation(1)
    assert desk.take() == [(1, EvaluateMember(1, begins=True))]
    desk.population.members[1].parked = True
    assert desk.enact(Continue(0, ""), Continue(1, "")) == [(0, EvaluateMember(0, begins=False))]
    desk.dispatch.send_evaluation(0)
    assert desk.take() == []


def test_a_restored_dispatch_forgets_and_keeps_what_the_controller_wants(desk):
    desk.enact(Continue(0, ""), remembered=[(1, 0), (2, 0)])
    other = Desk()
    restore_state(other.dispatch, save_state(desk.dispatch))
    assert other.dispatch.remembered == {(1, 0), (2, 0)}
    assert other.enact(Continue(0, ""), remembered=[(1, 0)]) == [(0, ForgetMember(2, 0))]
    state = save_state(desk.dispatch)
    state["remembered"] = [[9, 0]]
    with pytest.raises(ValueError, match="remembers member 9, and there is none"):
        restore_state(other.dispatch, state)


def test_hypers_alone_need_no_state_of_the_donor(desk):
    assert desk.enact(replace(0, 1, "hypers")) == [(0, edit(0, "keep", 1, None))]


def test_crossing_edits_have_the_exchange_to_themselves_one_after_the_other(desk):
    assert desk.enact(replace(0, 1), replace(3, 2), Mutate(2, VALUES, "")) == [(1, ExportMember(1, None))]
    desk.dispatch.exported(1)
    assert desk.take() == [(0, edit(0, "import", 1, None))]
    assert desk.applied(0) == [(0, ExportMember(2, None))]
    desk.dispatch.exported(2)
    assert desk.take() == [(1, edit(3, "import", 2, None))]
    assert desk.applied(3) == [(0, edit(2, "keep", None, None))]


def test_edits_of_other_packs_cross_meanwhile_if_each_pack_has_an_exchange_of_its_own():
    desk = Desk(5, 5, exchange_per_pack=True)
    sent = desk.enact(replace(0, 1), replace(2, 3), replace(4, 1))
    assert sent == [(1, ExportMember(1, None)), (3, ExportMember(3, None))], "pack 1 exports one at a time"
    desk.dispatch.exported(3)
    assert desk.take() == [(2, edit(2, "import", 3, None))]
    desk.dispatch.exported(1)
    assert desk.take() == [(0, edit(0, "import", 1, None))]
    assert desk.applied(2) == []
    assert desk.applied(0) == [(1, ExportMember(1, None))], "once nobody uses the exchange of pack 0"


def test_a_lost_pack_leaves_the_exports_of_others_to_themselves():
    desk = Desk(6, 6, exchange_per_pack=True)
    desk.enact(replace(0, 1), replace(2, 3), replace(4, 1))
    assert desk.lost(0) == [], "member 1 is still being exported, for nobody"
    desk.dispatch.exported(3)
    assert desk.take() == [(2, edit(2, "import", 3, None))]
    desk.dispatch.exported(1)
    assert desk.take() == [(1, ExportMember(1, None))]
    assert desk.lost(1) == [("filled", 4), (4, edit(4, "import", 1, None))]
    desk.applied(2)
    desk.applied(4)
    assert not desk.dispatch.busy


def test_a_donor_that_changes_itself_is_remembered_first(desk):
    """0 copies 2, 2 copies 0, and 1 copies 3, which restarts: each donor as it was."""
    sent = desk.enact(replace(0, 2), replace(1, 3), replace(2, 0), Restart(3, VALUES, ""))
    assert sent == [
        *((m % 2, RememberMember(m, BORROWED)) for m in (0, 2, 3)),
        (0, edit(0, "copy", 2, BORROWED)),
        (1, edit(1, "copy", 3, BORROWED)),
        (0, edit(2, "copy", 0, BORROWED)),
        (1, edit(3, "fresh", None, None)),
        *((m % 2, ForgetMember(m, BORROWED)) for m in (0, 2, 3)),
    ]


def test_a_member_that_copies_itself_needs_no_remembered_state(desk):
    assert desk.enact(replace(0, 0)) == [(0, edit(0, "copy", 0, None))]


def test_what_the_controller_remembers_is_kept_before_and_dropped_after(desk):
    assert desk.enact(Mutate(1, VALUES, ""), remembered=[(1, 0), (2, 0)]) == [
        (1, RememberMember(1, 0)),
        (0, RememberMember(2, 0)),
        (1, edit(1, "keep", None, None)),
    ]
    desk.applied(1)
    sent = desk.enact(replace(3, 2, of=0), remembered=[(1, 0)])
    assert sent == [(0, ExportMember(2, 0))], "forgotten only when the last user has it"
    desk.dispatch.exported(2)
    assert desk.take() == [(1, edit(3, "import", 2, 0))]
    assert desk.applied(3) == [(0, ForgetMember(2, 0))]
    assert not desk.dispatch.busy


def test_edits_of_a_lost_pack_are_settled_without_a_proof(desk):
    desk.enact(Mutate(0, VALUES, ""), replace(2, 0), Mutate(1, VALUES, ""), remembered=[(0, 0), (1, 0)])
    assert desk.lost(0) == []
    assert desk.dispatch.busy, "member 1 of the other pack"
    assert desk.applied(1) == []
    assert not desk.dispatch.busy
    assert [m.generation for m in desk.population.members] == [1, 1, 1, 0]


def test_a_donor_that_is_lost_is_put_into_the_exchange_for_the_others(desk):
    """1 and 3 wait for the weights of 0 and 2, of pack 0; 2 for those of 1."""
    assert desk.enact(replace(1, 0), replace(2, 1), replace(3, 2)) == [
        *((m % 2, RememberMember(m, BORROWED)) for m in (1, 2)),
        (0, ExportMember(0, None)),
    ]
    assert desk.lost(0) == [("filled", 1), (1, edit(1, "import", 0, None))]
    assert desk.applied(1) == [("filled", 3), (1, edit(3, "import", 2, BORROWED))]
    assert desk.applied(3) == [(1, ForgetMember(1, BORROWED))], "none to the new learner of pack 0"
    assert not desk.dispatch.busy


def test_weights_of_a_lost_donor_come_shrunk_already(desk):
    desk.enact(Replace(1, 0, "both", VALUES, "", shrink_perturb=(0.2, 0.1)))
    assert desk.lost(0) == [("filled", 1), (1, edit(1, "import", 0, None))]


def test_weights_of_a_lost_donor_are_as_old_for_the_schedule_as_they_were(desk):
    desk.enact(replace(1, 0))
    (_, (_, sent)) = desk.lost(0, fresh_frames=70)
    assert sent.fresh_frames == 70


def test_what_was_exported_before_its_learner_was_lost_goes_on(desk):
    desk.enact(replace(1, 0))
    desk.dispatch.exported(0)
    desk.take()
    assert desk.lost(0) == []
    assert desk.applied(1) == []


def test_the_exchange_stays_taken_while_a_donor_is_exported_for_a_lost_member(desk):
    desk.enact(replace(0, 1), replace(3, 2))
    assert desk.lost(0) == [], "member 1 is still being written there"
    desk.dispatch.exported(1)
    assert desk.take() == [("filled", 3), (1, edit(3, "import", 2, None))]


def test_an_export_ends_with_its_own_learner(desk):
    desk.enact(replace(0, 1), replace(3, 2))
    desk.lost(0)
    assert desk.lost(1) == []
    assert not desk.dispatch.busy
    assert desk.enact(replace(0, 1)) == [(1, ExportMember(1, None))]


def test_a_new_learner_is_told_the_limits_of_its_members(desk):
    desk.enact(Continue(0, "", until_frames=50), Continue(1, "", until_frames=70))
    desk.dispatch.send_limits(1)
    assert desk.take() == [(1, TrainUntil(1, 70))]


# -- members that move ---------------------------------------------------------------------------------------


def test_a_member_on_its_way_to_another_pack_keeps_decisions_waiting(desk):
    desk.dispatch.move(2, 1)
    assert desk.take() == [(0, ReleaseMember(2))]
    assert desk.dispatch.busy
    assert desk.dispatch.released(AdmitMember(2, 0, VALUES)) == (2, 1)
    assert not desk.dispatch.busy


def test_a_member_whose_pack_is_lost_before_it_left_stays(desk):
    desk.dispatch.move(2, 1)
    desk.dispatch.move(1, 0)
    desk.take()
    desk.lost(0)
    assert desk.dispatch.busy, "the other one is still on its way"
    assert desk.dispatch.released(AdmitMember(1, 0, VALUES)) == (1, 0)
    assert not desk.dispatch.busy
