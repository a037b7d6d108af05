"""Finds members whose weights a run has saved. Only numbers are read: nothing that a config names is imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.records import converted
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.reading import read_object
from pbt_rl.record.trust import read_config

BEST = "best"
_MEMBER = rf"{BEST}|[0-9]{{1,9}}"
_SOURCE = re.compile(rf"(?P<run>.+?)(@(?P<at>[0-9]{{1,18}}))?(:(?P<member>{_MEMBER}))?")


@dataclass(frozen=True)
class Source:
    """What RUN[@FRAMES][:MEMBER] says. at: frames of a checkpoint; None for the newest whole one."""

    run: Path
    at: int | None = None
    member: str = BEST

    @classmethod
    def of(cls, text: str) -> Source | None:
        """Read such a text; None if it names no folder of a run."""
        if RunFolder(Path(text)).is_run:
            return cls(Path(text))
        match = _SOURCE.fullmatch(text)
        if match is None or not RunFolder(Path(match["run"])).is_run:
            return None
        at = None if match["at"] is None else int(match["at"])
        return cls(Path(match["run"]), at, match["member"] or BEST)


@dataclass(frozen=True)
class SavedPolicy:
    """One member of one checkpoint."""

    run: Path
    checkpoint: Checkpoint
    member: int

    def __str__(self) -> str:
        return f"member {self.member} of {self.run} at {self.checkpoint.frames:,} frames"


def find_saved(source: Source, note: Callable[[str], None]) -> SavedPolicy:
    """Find a member. note: is told of newer checkpoints that are not whole, and so passed over.

    Raises ConfigError with the frames or members that there are; CheckpointBroken for a state.json that is damaged.
    """
    if not re.fullmatch(_MEMBER, source.member):
        raise ConfigError(f"--member {source.member!r} cannot be used: write best or the id of a member")
    checkpoint = _checkpoint(source, note)
    saved = [one.member for one in checkpoint.members()]
    member = _best(source.run, checkpoint, saved) if source.member == BEST else int(source.member)
    if member not in saved:
        never = member < read_config(source.run).num_policies
        why = "it had never held a slot, so it has no weights" if never else "there is no such member"
        raise ConfigError(
            f"member {member} is not in {checkpoint.path}: {why}; choose one of {', '.join(map(str, saved))}"
        )
    return SavedPolicy(source.run, checkpoint, member)


def _checkpoint(source: Source, note: Callable[[str], None]) -> Checkpoint:
    checkpoints = Checkpoints(RunFolder(source.run).checkpoints)
    if source.at is not None:
        return checkpoints.at(source.at)
    notes: list[str] = []
    newest = checkpoints.newest(notes.append)
    if newest is None:
        why = f"none of its checkpoints is whole: {notes[0]}" if notes else "it was never saved"
        raise ConfigError(f"{source.run} has no weights: {why}")
    for text in notes:
        note(text)
    return newest


def _best(run: Path, checkpoint: Checkpoint, saved: list[int]) -> int:
    named = _named_best(run, checkpoint)
    if named in saved:
        return int(named)
    best = checkpoint.state().get("best_member")
    if best is None:  # no episode had finished
        return saved[0]
    member: int = converted(best, int, f"best_member in the state.json of {checkpoint.path}")
    return member


def _named_best(run: Path, checkpoint: Checkpoint) -> Any:
    """Return the best member that the summary names, if it is about this checkpoint: it knows the final games."""
    path = RunFolder(run).summary
    summary = read_object(path, "") if path.is_file() else {}
    return summary.get("best_member") if summary.get("saved_at_frames") == checkpoint.frames else None
