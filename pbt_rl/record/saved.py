"""Saved members of a run, and the trust check of the run's config.

Options in a config may name modules (`module:name`), whose import executes code. Other options name a cluster or
folders, or contain text for an environment (`--env-option`). A command uses all these options only if the user created
the run, or trusts its author (--trust). The command first checks the options that it uses. `PLAY` and `AUDIT` list such
options. The other files of a run contain only data.
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
from pbt_rl.controllers.events import Start
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table, values_of
from pbt_rl.record.checkpoints import Checkpoint, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import journal_events, read_object


def continued_config(values: Mapping[str, Any]) -> Config | None:
    """Return the config of the run that `pbt-rl train` continues with these options, or None if it starts a run.

    values: dotted field -> value. Raises ConfigError or EnvSetupError if the config of the run cannot be used.
    """
    name, out = values.get("name"), values.get("out", Config.out)
    if name is None or values.get("overwrite") or not RunFolder(Path(out) / name).is_run:
        return None
    return read_config(Path(out) / name)


def read_config(run: Path) -> Config:
    """Read the config of a run, without importing the modules that it names.

    Call `check_trust` before you use the config, because these modules may be another author's code.

    Raises ConfigError for a missing or invalid config, or EnvSetupError for an invalid --env-option.
    """
    folder = RunFolder(run)
    missing = folder.lacks("config.json")
    if _is_of_agents(run):
        missing = f"{run} has no config.json: restore the file"
    elif os.path.isfile(folder.journal):  # noqa: PTH113 - pathlib raises for a name that is too long
        missing = (
            f"{run} has a journal but no config.json, because `pbt-rl train` did not make it: continue it from the "
            "Python program that made it"
        )
    return config_from_json(read_object(folder.config, missing), folder.at_default)


def _is_of_agents(run: Path) -> bool:
    """Check whether `pbt-rl train` made a run, according to the run's journal."""
    try:
        start = next(journal_events(run), None)
    except ConfigError:
        return False
    return isinstance(start, Start) and "num_policies" in start.config


def _holds_text(value: Any) -> bool:
    """Check whether a value of --env-option contains text.

    A text may be dangerous, because an environment may use it as the name of a module, file or program.
    """
    if isinstance(value, Mapping):
        return any(_holds_text(inner) for inner in value.values())
    return isinstance(value, str) or (isinstance(value, list) and any(_holds_text(inner) for inner in value))


_MACHINE = tuple(name for name, option in table(Config).items() if "machine" in option.metadata)
"""Options about the machine, such as folders that are read or written."""

NETWORK = ("model.encoder", "model.core", "model.policy-head", "model.value-head")
"""Options that may name network modules."""
PLAY = ("env", "env-option", "algo", *NETWORK, *_MACHINE)
"""Options that `saved_to_play` checks."""
AUDIT = ("controller", "pbt.exploit", "pbt.explore", "pbt.custom-explore")
"""Options that an audit checks before it recomputes decisions."""


def check_trust(config: Config, options: Collection[str], run: Path, *, trust: bool) -> None:
    """Raise ConfigError if one of these options names code or paths of another author.

    options: names of the options to check. trust: True to skip the check, because the user trusts the author.
    If the user created the run at this path, a line with these options is printed instead, once per process.
    """
    named = [] if trust else _foreign(config, options)
    if not named:
        return
    typed = " ".join(f"--{option} {shlex.quote(value):.200}" for option, value in named)
    if not RunFolder(run).is_own:
        raise ConfigError(
            f"{RunFolder(run).config} names {typed}, and this command would import or use it. If you trust the author "
            "of the run, add --trust (from Python: trust=True)"
        )
    short = typed if len(typed) <= MOST_SHOWN else f"{typed[:MOST_SHOWN]}..."
    _say(f"pbt-rl: using code and paths of your own run: {short}")


MOST_SHOWN = 80
"""Maximum number of characters in the printed line of options that name code or paths."""


@cache
def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _foreign(config: Config, asked: Collection[str]) -> list[tuple[str, str]]:
    """Return (option, value) pairs for each option in `asked` that may be harmful if another person has chosen it.

    These are modules, paths, clusters, texts in --env-option, and options of `_MACHINE` that differ from their
    defaults.
    """
    options = values_of(config)
    found: list[tuple[str, str]] = []
    for name, option in table(config).items():
        values = options[name] if isinstance(options[name], tuple) else (options[name],)
        if option.is_external is not None and any(map(option.is_external, values)):
            found += [(name, value) for value in values]
    keywords = config.env_options.keywords
    found += [
        ("env-option", entry)
        for entry, value in zip(config.env_option, keywords.values(), strict=True)
        if _holds_text(value)
    ]
    usual = values_of(Config(env=config.env))
    found += [(name, str(options[name])) for name in _MACHINE if options[name] != usual[name]]
    return [(name, value) for name, value in found if name in asked]


BEST = "best"
_MEMBER = rf"{BEST}|[0-9]{{1,9}}"
_SOURCE = re.compile(rf"(?P<run>.+?)(@(?P<at>[0-9]{{1,18}}))?(:(?P<member>{_MEMBER}))?")


@dataclass(frozen=True)
class Source:
    """Parsed text RUN[@FRAMES][:MEMBER].

    at: FRAMES of a checkpoint. None for the newest undamaged checkpoint. member: `best`, or the digits of an id.
    """

    run: Path
    at: int | None = None
    member: str = BEST

    @classmethod
    def of(cls, text: str) -> Source | None:
        """Parse a text. None if the text does not name the folder of a run. `~` and variables are expanded."""
        text = os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111 - the text is more than a path
        if RunFolder(Path(text)).is_run:
            return cls(Path(text))
        match = _SOURCE.fullmatch(text)
        if match is None or not RunFolder(Path(match["run"])).is_run:
            return None
        at = None if match["at"] is None else int(match["at"])
        return cls(Path(match["run"]), at, match["member"] or BEST)


@dataclass(frozen=True)
class SavedPolicy:
    """Saved member: a member in a checkpoint of a run."""

    run: Path
    checkpoint: Checkpoint
    member: int

    def __str__(self) -> str:
        frames = next(one.frames for one in self.checkpoint.members() if one.member == self.member)
        return f"member {self.member} of {self.run} at {frames:,} frames"


def find_saved(source: Source, note: Callable[[str], None]) -> SavedPolicy:
    """Find a saved member.

    note: function that prints a line about each newer checkpoint that is skipped because it is damaged.
    Raises ConfigError if the checkpoint or the member does not exist. Raises CheckpointBroken if a file that is read is
    damaged.
    """
    if not re.fullmatch(_MEMBER, source.member):
        raise ConfigError(f"--member {source.member!r} cannot be used: write best or the id of a member")
    checkpoint = _checkpoint(source, note)
    saved = [one.member for one in checkpoint.members()]
    member = _best(source.run, checkpoint, saved) if source.member == BEST else int(source.member)
    if member not in saved:
        never = member < read_config(source.run).members
        why = "it never had a slot, and has no weights" if never else "this member does not exist"
        raise ConfigError(
            f"member {member} is not in {checkpoint.path}: {why}; choose one of {', '.join(map(str, saved))}"
        )
    return SavedPolicy(source.run, checkpoint, member)


def saved_to_play(source: Source, note: Callable[[str], None], *, trust: bool) -> tuple[Config, SavedPolicy]:
    """Return the config and a saved member of a run, after the trust check.

    Arguments and errors: see `read_config`, `check_trust` and `find_saved`.
    """
    config = read_config(source.run)
    check_trust(config, PLAY, source.run, trust=trust)
    return config, find_saved(source, note)


def _checkpoint(source: Source, note: Callable[[str], None]) -> Checkpoint:
    checkpoints = Checkpoints(RunFolder(source.run).checkpoints)
    if source.at is not None:
        return checkpoints.at(source.at)
    notes: list[str] = []
    newest = checkpoints.newest(notes.append)
    if newest is None:
        why = f"all its checkpoints are incomplete or damaged: {notes[0]}" if notes else "it was never saved"
        raise ConfigError(f"{source.run} has no weights: {why}")
    for text in notes:
        note(text)
    return newest


def _best(run: Path, checkpoint: Checkpoint, saved: list[int]) -> int:
    named = _named_best(run, checkpoint)
    if named in saved:
        return int(named)
    best = checkpoint.state().get("best_member")
    if best is None:  # no episode had ended
        return saved[0]
    if not isinstance(best, int) or isinstance(best, bool):
        raise ConfigError(
            f"{checkpoint.path}: best_member in its state.json is not a member id: {best!r:.100}"
        )
    return best


def _named_best(run: Path, checkpoint: Checkpoint) -> Any:
    """Return the best member in summary.json. None without a summary, or if it belongs to another checkpoint.

    The summary takes precedence over state.json, because it includes the final evaluation.
    """
    path = RunFolder(run).summary
    summary = read_object(path, "") if path.is_file() else {}
    return summary.get("best_member") if summary.get("saved_at_frames") == checkpoint.frames else None
