"""Checks of a run and of the machine for `scripts/storm.py`. Each check returns a list of errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event

from pbt_rl.errors import CheckpointBroken, ConfigError
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints
from pbt_rl.record.journal import read_journal
from pbt_rl.record.run_lock import is_held
from pbt_rl.report.audit import audit

MARK = "PBT_RL_STORM"
"""Environment variable that marks each process of a run."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a temporary file
KNOWN = re.compile(
    r"(config|summary)\.json|journal\.jsonl|\.lock|\.origin|\.changed|checkpoints|population|logs|policy_\d+(\.json)?"
    r"|(checkpoints/)policy_\d+\.safetensors|checkpoints/at_\d+(_\d+)?"
)
CHANGES = frozenset({"replace", "mutate", "restart"})
"""Decisions that begin a new generation of a member."""
HEADER_BYTES, CHECKSUM_BYTES = 12, 4
"""Sizes of the header and of a checksum in a TensorBoard record."""


def processes(mark: str) -> dict[int, list[str]]:
    """Return process id -> command line for each process of a run, without zombies. mark: value of MARK."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # just ended, or owned by another user
            continue
    return {pid: line for pid, line in found.items() if any(line)}  # empty for a zombie


def kind(command: list[str]) -> str:
    """Return the role of a process: supervisor, actor, learner, drawing, keeper or other."""
    if any(part.endswith("keeper.py") for part in command):
        return "keeper"
    modules = {"pbt_rl.actors.actor": "actor", "pbt_rl.learner.learner": "learner"}
    modules |= {"pbt_rl.report.images": "drawing", "pbt_rl": "supervisor"}
    return next((modules[part] for part in command if part in modules), "other")


def shared_memory() -> set[str]:
    """Return the names of the files in shared memory."""
    return {entry.name for entry in os.scandir(SHARED_MEMORY)}


def unmapped(names: set[str]) -> set[str]:
    """Return the names of the files that no process maps. (Mapped files may belong to other programs.)"""
    used = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # just ended, or owned by another user
            used |= {int(line.split()[4]) for line in path.read_text(errors="replace").splitlines()}
    return {e.name for e in os.scandir(SHARED_MEMORY) if e.name in names and e.inode() not in used}


def left_files(folder: Path) -> list[str]:
    """Check that an ended run has no unknown files in or beside its folder, and that the lock of the folder is free."""
    inside = [*folder.iterdir(), *(folder / "checkpoints").glob("*")]
    names = [str(path.relative_to(folder)) for path in inside]
    left = [name for name in names if not KNOWN.fullmatch(name)]
    left += [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]
    reasons = [f"left: {name}" for name in sorted(left)]
    return reasons + (["the folder is still locked"] if is_held(folder) else [])


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a run. None without a checkpoint."""
    every = Checkpoints(folder / "checkpoints").all()
    return every[-1] if every else None


def clock(checkpoint: Checkpoint) -> int:
    """Return the population clock in the state of a checkpoint. (The frames in the folder's name may differ.)"""
    members = checkpoint.state()["run"]["population"]["members"]
    training: list[int] = [m["frames"] for m in members if not m["stopped"]]
    return min(training, default=max(int(m["frames"]) for m in members))


def state_time(checkpoint: Checkpoint) -> float:
    """Return the time at which the state of a checkpoint was saved: the modification time of its first file."""
    return (checkpoint.path / "state.json").stat().st_mtime


def broken(folder: Path) -> list[str]:
    """Check that the run has a checkpoint, and that the newest checkpoint is not damaged."""
    newest = newest_checkpoint(folder)
    if newest is None:
        return ["no checkpoint is left"]
    try:
        newest.verify()
    except CheckpointBroken as error:
        return [str(error)]
    return []


# -- the journal --------------------------------------------------------------------------------------------


def journal_reasons(folder: Path) -> list[str]:
    """Check a journal for duplicate events, decreasing times or frames, and wrong order."""
    events = read_journal(folder / "journal.jsonl")
    lines = Counter(json.dumps(event, sort_keys=True) for event in events)
    reasons = [f"{n} journal lines say {line[:200]}" for line, n in lines.items() if n > 1]
    kinds = [event["event"] for event in events]
    if kinds[:2] != ["start", "initial"] or kinds.count("start") != 1:
        reasons.append(f"the journal begins with {kinds[:3]}")
    reasons += _steps_back(events) + _generation_gaps(events) + _undecided(events)
    return reasons


def _steps_back(events: list[dict[str, Any]]) -> list[str]:
    reasons = []
    frames: dict[int, int] = {}
    clock = -1.0
    for number, event in enumerate(events, start=1):
        if event["time"] < clock:
            older = clock - event["time"]
            reasons.append(f"journal line {number} is {older:.3f} s older than the one before")
        clock = event["time"]
        told = {"progress": event.get("members", []), "round": event.get("report", {}).get("members", [])}
        for member in told.get(event["event"], []):
            if member["frames"] < frames.get(member["member"], 0):
                reasons.append(f"journal line {number}: frames of member {member['member']} step back")
            frames[member["member"]] = member["frames"]
    return reasons


def _generation_gaps(events: list[dict[str, Any]]) -> list[str]:
    """Check that the acknowledged edits of each member have the generations 1, 2, 3...

    An edit of a parked member is acknowledged twice. If a learner is lost during an edit, the edit is not acknowledged,
    because the new learner starts with the edited member.
    """
    seen: defaultdict[int, list[int]] = defaultdict(list)
    restored: set[int] = set()
    for event in events:
        if event["event"] == "pack_lost":
            restored |= {member["member"] for member in event["members"]}
        if event["event"] != "applied" or seen[event["member"]][-1:] == [event["generation"]]:
            continue
        numbers = seen[event["member"]]
        if event["member"] in restored:
            restored.discard(event["member"])
            numbers += range(len(numbers) + 1, event["generation"])
        numbers.append(event["generation"])
    return [
        f"generations of member {member} are {numbers}"
        for member, numbers in sorted(seen.items())
        if numbers != list(range(1, len(numbers) + 1))
    ]


def _undecided(events: list[dict[str, Any]]) -> list[str]:
    """Check that only recorded decisions were applied, each at most once."""
    made: Counter[int] = Counter()
    applied: defaultdict[int, set[int]] = defaultdict(set)
    for event in events:
        if event["event"] == "round":
            made.update(d["member"] for d in event["decisions"] if d["decision"] in CHANGES)
        elif event["event"] == "applied":
            applied[event["member"]].add(event["generation"])
    return [
        f"member {member}: {made[member]} changes were decided, {len(done)} applied"
        for member, done in sorted(applied.items())
        if len(done) > made[member]
    ]


def audit_reasons(folder: Path) -> list[str]:
    """Check that an audit of the run reproduces all decisions."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            code = audit(folder)
    except ConfigError as error:
        return [f"audit: {error}"]
    return [f"audit: {told.getvalue()}"] if code else []


# -- TensorBoard ----------------------------------------------------------------------------------------------


def curve_reasons(folder: Path) -> list[str]:
    """Check TensorBoard curves for decreasing or duplicate steps, over the files of all resumes."""
    reasons = []
    for events in sorted({path.parent for path in folder.glob("*/events.out.tfevents.*")}):
        curves: dict[str, list[int]] = {}
        for file in sorted(events.glob("events.out.tfevents.*")):
            here: set[str] = set()
            for event in _curve_events(file):
                if event.HasField("session_log"):  # a resume: TensorBoard discards later steps
                    curves = {tag: [s for s in steps if s < event.step] for tag, steps in curves.items()}
                for value in event.summary.value:
                    if not value.HasField("simple_value"):
                        continue
                    steps = curves.setdefault(value.tag, [])
                    last = steps[-1] if steps else -1
                    if event.step < last or (event.step == last and value.tag not in here):
                        reasons.append(f"{events.name}: {value.tag} goes from step {last} to {event.step}")
                    steps.append(event.step)
                    here.add(value.tag)
    return reasons[:5]


def _curve_events(path: Path) -> Iterator[Any]:
    content = path.read_bytes()
    at = 0
    while at + HEADER_BYTES <= len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        begin = at + HEADER_BYTES
        at = begin + size + CHECKSUM_BYTES
        if at > len(content):  # incomplete, because the run was killed
            return
        event = Event()
        event.ParseFromString(content[begin : begin + size])
        yield event
