"""Writing whole checkpoints of small members, for tests."""

from pbt_rl.record.checkpoint_writer import CheckpointWriter
from tests.helpers.snapshots import NAMES, snapshot
from tests.helpers.waiting import wait_until

TIMEOUT_SECONDS = 20.0
STATE = {"controller": {"seed": 3, "best": float("nan")}, "text": "é"}


def ended(writer):
    """Wait for the end of the checkpoint in progress."""
    found = []

    def poll():
        found.extend(writer.poll())
        return bool(found)

    assert wait_until(poll, pause=0.002), "the checkpoint did not end"
    (only,) = found
    return only


def write_one(writer, frames, members=2, remembered=(), kept=False, state=STATE):
    """Write a checkpoint of members 0.. of generation 1; remembered: (member, generation)."""
    writer.begin_checkpoint(frames, state, members + len(remembered), kept)
    for member in range(members):
        writer.add(snapshot(member, 1, frames), lambda: None)
    for member, generation in remembered:
        writer.add(snapshot(member, generation, frames, remembered=True), lambda: None)
    return ended(writer)


def write_all(folder, *frames, keep=9, **more):
    writer = CheckpointWriter(folder, NAMES, keep, warn=lambda text: None)
    found = [write_one(writer, at, **more) for at in frames]
    assert writer.close(TIMEOUT_SECONDS)
    return found
