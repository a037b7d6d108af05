"""Kills processes that write checkpoints, at random moments: `python -m tests.helpers.killed_writer FOLDER KILLS SEED`.

Each process is forked from this one, which has no other thread, and goes on where the last one was killed. After every
kill the newest whole checkpoint must be the last one that was reported as written, or a later one, and load as it was
written. Prints how many were written, and how many kills left something unfinished.
"""

import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from pbt_rl.record.checkpoint_writer import CheckpointWriter, Written
from pbt_rl.record.checkpoints import Checkpoints
from tests.helpers.checkpoints import write_one
from tests.helpers.snapshots import NAMES, assert_same, snapshot

KEEP = 2


def write_for_ever(folder, report_fd):
    """Write one checkpoint after the other; report the number of each, 8 bytes."""
    writer = CheckpointWriter(folder, NAMES, KEEP, warn=sys.exit)
    newest = Checkpoints(folder).newest(sys.exit)
    frames = newest.frames if newest else 0
    while True:
        frames += 100
        written = write_one(writer, frames, remembered=[(1, 0)])
        assert isinstance(written, Written), written
        os.write(report_fd, written.number.to_bytes(8, "little"))


def kill_one(folder, after_seconds, after_reports=0):
    """Kill a writer so long after that many reports; return the last number that it reported, 0 if none."""
    read_fd, report_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        write_for_ever(folder, report_fd)
    os.close(report_fd)
    first = os.read(read_fd, 8 * after_reports) if after_reports else b""
    time.sleep(after_seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"it had ended: {status}"
    with os.fdopen(read_fd, "rb") as reports:
        return int.from_bytes((first + reports.read())[-8:], "little")


def check(folder, at_least, notes):
    found = Checkpoints(folder).newest(notes.append)
    number = found.manifest.number if found else 0
    assert number >= at_least, f"{number} is the newest, {at_least} was reported"
    if found:
        for member in (0, 1):
            assert_same(found.load(member, NAMES), snapshot(member, 1, found.frames))
        assert_same(found.load(1, NAMES, 0), snapshot(1, 0, found.frames, remembered=True))
    return number


def main(folder, kills, seed):
    rng, notes, unfinished, kept = Random(seed), [], 0, KEEP
    began = time.monotonic()
    number = kill_one(folder, 0, after_reports=1)
    usual_seconds = time.monotonic() - began
    for _ in range(kills):
        reported = kill_one(folder, rng.uniform(0, 4 * usual_seconds))
        number = check(folder, max(number, reported), notes)
        unfinished += any(path.name.endswith(".partial") for path in folder.iterdir())
        before, kept = kept, len(Checkpoints(folder).all())
        assert kept <= max(before, KEEP) + 1, "it was killed before it removed more than one old one"
    assert notes == [], notes
    print(number, unfinished)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
