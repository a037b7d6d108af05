"""Finds members whose weights a run has saved, and says what the files of a run may make this program do.

They make it do nothing but read numbers, unless the user trusts them. A config may name modules (`module:name`), which
are imported and so run, a cluster, and folders and options of engines. Each command checks the options that it would
follow (`PLAY`, `AUDIT`) before it does: the user either trusts the run as a whole, or has given the same value on the
command line. To find a member nothing that a config names is imported.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.options import table, walk
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import read_object


def read_config(run: Path) -> Config:
    """Read the config of a run. It imports nothing; `Trust.check` comes before anything else is done with it.

    Raises ConfigError if there is none, or EnvSetupError.
    """
    folder = RunFolder(run)
    missing = folder.lacks("config.json")
    if os.path.isfile(folder.journal):  # noqa: PTH113 - for pathlib a name may be too long
        missing = (
            f"{run} has a journal but no config.json: it is a run of something else than agents, which goes on in the "
            "Python that made it"
        )
    return config_from_json(read_object(folder.config, missing))


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


@dataclass(frozen=True)
class Trust:
    """What of the files of runs is followed.

    everything: all that they name. given: option -> values that the user gave too, so that they are followed.
    """

    everything: bool = False
    given: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, everything: bool, given: Mapping[str, Sequence[str]]) -> Trust:
        """Return the trust of a command line, on which "" stands for an option that is not given."""
        named = {option: tuple(value for value in values if value) for option, values in given.items()}
        return cls(everything, {option: values for option, values in named.items() if values})

    def check(self, config: Config, options: Sequence[str], run: Path) -> None:
        """Raise ConfigError if one of these options of a run's config names what is not trusted."""
        if self.everything:
            return
        unknown = [
            (option, value)
            for option, value in _foreign(config)
            if option in options and value not in self.given.get(option, ())
        ]
        if not unknown:
            return
        named = _as_typed(unknown)
        same = "" if _of_a_machine(unknown) else f", or the same again: {named}"
        raise ConfigError(
            f"{RunFolder(run).config} names {named}, which would be imported or used. If you trust whoever wrote it, "
            f"add --trust (from Python: trust=True){same}"
        )

    def check_given(self, config: Config, run: Path) -> None:
        """Raise ConfigError if the user gave a value that the run does not have: nothing would follow it."""
        options = {name: value for name, _, value in walk(config)}
        for option, values in self.given.items():
            own = options[option]
            has = own if isinstance(own, tuple) else (own,)
            for value in values:
                if value not in has:
                    raise ConfigError(
                        f"--{option} {value} cannot be used: {run} was trained with {' '.join(has) or 'nothing there'}"
                    )


NO_TRUST = Trust()


def again(config: Config, options: Sequence[str]) -> str:
    """Return what a command needs behind a run, so that these options of its config are followed; "" if nothing."""
    named = [(option, value) for option, value in _foreign(config) if option in options]
    if not named:
        return ""
    return " --trust" if _of_a_machine(named) else f" {_as_typed(named)}"


def _as_typed(named: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"--{option} {shlex.quote(value):.200}" for option, value in named)


def _of_a_machine(named: Sequence[tuple[str, str]]) -> bool:
    """Whether there is an option among them that playing a member does not take, but by `--trust`."""
    return any(option in _MACHINE for option, _ in named)


def _foreign(config: Config) -> list[tuple[str, str]]:
    """Return (option, value) of everything in a config that leads out of what is installed with this program."""
    options = {name: value for name, _, value in walk(config)}
    found: list[tuple[str, str]] = []
    for name, option in table(config).items():
        values = options[name] if isinstance(options[name], tuple) else (options[name],)
        if option.leads_out is not None and any(map(option.leads_out, values)):
            found += [(name, value) for value in values]  # all of them: those that are typed take their place
    keywords = config.env_options.keywords
    found += [
        ("env-option", entry)
        for entry, value in zip(config.env_option, keywords.values(), strict=True)
        if _holds_text(value)
    ]
    usual = {name: value for name, _, value in walk(Config(env=config.env))}
    found += [(name, str(options[name])) for name in _MACHINE if options[name] != usual[name]]
    return found


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
