"""Finds members whose weights a run has saved, and says what the files of a run may make this program do.

They make it do nothing but read numbers, unless the user has made them or trusts them. A config may name modules
(`module:name`), which are imported and so run, a cluster, and folders and options of engines. Each command checks the
options that it would follow (`PLAY`, `AUDIT`) before it does. To find a member nothing that a config names is imported.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table, walk
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import read_object


def read_config(run: Path) -> Config:
    """Read the config of a run. It imports nothing; `check_trust` comes before anything else is done with it.

    Raises ConfigError if there is none, or EnvSetupError.
    """
    folder = RunFolder(run)
    missing = folder.lacks("config.json")
    if os.path.isfile(folder.journal):  # noqa: PTH113 - for pathlib a name may be too long
        missing = (
            f"{run} has a journal but no config.json: it is a run of something else than agents, which goes on in the "
            "Python that made it"
        )
    return config_from_json(read_object(folder.config, missing), folder.at_default)


def _holds_text(value: Any) -> bool:
    """Whether a value of --env-option is, or holds, a text: makers take some as names of modules, files or programs."""
    if isinstance(value, Mapping):
        return any(_holds_text(inner) for inner in value.values())
    return isinstance(value, str) or (isinstance(value, list) and any(_holds_text(inner) for inner in value))


_MACHINE = tuple(name for name, option in table(Config).items() if "machine" in option.metadata)
"""Options about this machine: a folder that is read, one in which files are written and removed, and its size."""

NETWORK = ("model.encoder", "model.core", "model.policy-head", "model.value-head")
"""Options that may name parts of a network."""
PLAY = ("env", "env-option", "algo", *NETWORK, *_MACHINE)
"""Options that playing a member follows."""
AUDIT = ("controller", "pbt.exploit", "pbt.explore", "pbt.custom-explore")
"""Options that deciding again follows."""


def check_trust(config: Config, options: Collection[str], run: Path, *, trust: bool) -> None:
    """Raise ConfigError if one of these options of a run's config leads to code or places of others.

    trust: whether the user trusts whoever wrote the run, so that all of it is followed. A run of the user's own, where
    it was made, is: what is followed is named.
    """
    named = [] if trust else _foreign(config, options)
    if not named:
        return
    typed = " ".join(f"--{option} {shlex.quote(value):.200}" for option, value in named)
    if not RunFolder(run).is_own:
        raise ConfigError(
            f"{RunFolder(run).config} names {typed}, which would be imported or used. If you trust whoever wrote it, "
            "add --trust (from Python: trust=True)"
        )
    _say(f"pbt-rl: {run} is your own run: what it names is imported and used: {typed}")


@cache
def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _foreign(config: Config, asked: Collection[str]) -> list[tuple[str, str]]:
    """Return (option, value) of what leads out of what is installed with this program, of the options asked for."""
    options = {name: value for name, _, value in walk(config)}
    found: list[tuple[str, str]] = []
    for name, option in table(config).items():
        values = options[name] if isinstance(options[name], tuple) else (options[name],)
        if option.leads_out is not None and any(map(option.leads_out, values)):
            found += [(name, value) for value in values]
    keywords = config.env_options.keywords
    found += [
        ("env-option", entry)
        for entry, value in zip(config.env_option, keywords.values(), strict=True)
        if _holds_text(value)
    ]
    usual = {name: value for name, _, value in walk(Config(env=config.env))}
    found += [(name, str(options[name])) for name in _MACHINE if options[name] != usual[name]]
    return [(name, value) for name, value in found if name in asked]


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
        text = os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111 - the folder is a part of it
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
        frames = next(one.frames for one in self.checkpoint.members() if one.member == self.member)
        return f"member {self.member} of {self.run} at {frames:,} frames"


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
        never = member < read_config(source.run).members
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
    if not isinstance(best, int) or isinstance(best, bool):
        raise ConfigError(
            f"{checkpoint.path}: best_member in its state.json is not the id of a member: {best!r:.100}"
        )
    return best


def _named_best(run: Path, checkpoint: Checkpoint) -> Any:
    """Return the best member that the summary names, if it is about this checkpoint: it knows the final games."""
    path = RunFolder(run).summary
    summary = read_object(path, "") if path.is_file() else {}
    return summary.get("best_member") if summary.get("saved_at_frames") == checkpoint.frames else None
