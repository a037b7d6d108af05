"""Runs with checkpoints of a pack's slots, for tests of what reads them."""

import json

from pbt_rl.learner.build import net_names
from pbt_rl.record.checkpoint_writer import CheckpointWriter
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.wire.snapshot import MemberSnapshot, SnapshotHeader
from tests.helpers.checkpoints import PATIENCE_SECONDS, ended

KEEP = 9


def write_run(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    return folder


def save(run, pack, members, best=None, frames=1000, **state):
    """Write one checkpoint. members: id -> slot of the pack. Return its folder."""
    writer = CheckpointWriter(RunFolder(run).checkpoints, net_names(pack), KEEP, warn=print)
    writer.begin(frames, {"best_member": best, **state}, len(members), kept=False)
    for member, slot in members.items():
        arrays = {name: tensor.numpy() for name, tensor in pack.export_member(slot).items()}
        header = SnapshotHeader(member, 0, {"gamma": 0.5}, frames, 200, 10, 0)
        writer.add(MemberSnapshot(header, arrays), lambda: None)
    written = ended(writer)
    assert writer.close(PATIENCE_SECONDS)
    return written.path
