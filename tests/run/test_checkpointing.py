"""Checkpoints that come to nothing, and members that left their slot while one began."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from pbt_rl.actors.messages import LearnerSaved
from pbt_rl.actors.state_pool import Counts
from pbt_rl.config import Config
from pbt_rl.controllers.decisions import Restart
from pbt_rl.record.checkpoint_writer import CheckpointWriter
from pbt_rl.record.checkpoints import NetNames
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.checkpointing import Checkpointing
from tests.population.test_dispatch import VALUES, Desk, replace


class Office:
    """Checkpoints of six members on one pack of two slots, whose learner answers when it is told to."""

    def __init__(self, folder) -> None:
        self.desk = Desk(6, 1, slots=2)
        self.folder, self.warnings = RunFolder(folder), []
        record = SimpleNamespace(evaluated_frames=0, evaluated=None, note=print, warn=self.warnings.append)
        config = Config(env="toy/identity", num_policies=6, slots=2, name="x", out=folder.parent)
        run = SimpleNamespace(config=config, spread=False)
        self.checkpointing = Checkpointing(run, self.folder, self.desk.dispatch, record)
        self.checkpointing.names = NetNames((("w", 0, (2,)),), 2)

    def begin(self) -> None:
        fleet = SimpleNamespace(send=lambda _pack, _message: None)
        self.checkpointing.begin_checkpoint(fleet, {0}, dict)

    def go_on(self) -> None:
        self.checkpointing.note_learner_saved(0, LearnerSaved(self.checkpointing.begun, {}))
        until = time.monotonic() + 10
        while self.checkpointing.busy and time.monotonic() < until:
            for saved, _, _ in [one for _, one in self.desk.unanswered if isinstance(one, tuple)]:
                self.checkpointing.note_saved(0, self.desk.dispatch.saved(saved))
            self.desk.unanswered.clear()
            self.checkpointing.step()
        assert not self.checkpointing.busy


@pytest.mark.parametrize("decision", [Restart(3, VALUES, ""), replace(3, 5)], ids=["drawn", "copied"])
def test_a_checkpoint_that_comes_to_nothing_leaves_members_without_a_slot_as_they_are(decision, tmp_path):
    office = Office(tmp_path / "x")
    office.desk.enact(decision)
    office.desk.answer()
    weights = office.desk.weights(3)
    office.folder.path.mkdir()
    office.folder.checkpoints.write_text("where the folder should be")
    office.begin()
    office.go_on()
    assert len(office.warnings) == 1
    assert office.desk.weights(3) == weights


def test_a_member_that_left_its_slot_as_a_checkpoint_began_is_saved_with_the_counts_of_its_learner(
    tmp_path, monkeypatch
):
    office, written = Office(tmp_path / "x"), {}
    office.desk.train(0, 600)
    office.desk.swap(0, 0, 0, 2)  # what it saves is on its way
    office.begin()
    ((_, (saved, _, _)),) = [one for one in office.desk.unanswered if isinstance(one[1], tuple)]
    office.desk.unanswered.clear()
    office.desk.pool.write(saved.entry, {"param": np.zeros(2)}, Counts(750, 700, 7, 500))
    office.desk.dispatch.saved(saved)
    monkeypatch.setattr(
        CheckpointWriter, "add", lambda _, one, _done: written.update({one.header.member: one})
    )
    office.checkpointing.note_learner_saved(0, LearnerSaved(1, {}))
    header = written[0].header
    assert (header.frames, header.steps, header.updates, header.fresh_frames) == (750, 700, 7, 500)
