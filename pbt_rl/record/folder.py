"""Folder of a run: file paths and JSON files.

runs/NAME/
  config.json      complete config
  journal.jsonl    all events, see `record.journal`
  summary.json     result, written at the end of the run
  policy_00.json   current values of member 0
  policy_00/       TensorBoard events of member 0
  population/      TensorBoard events of the population
  checkpoints/     at_FRAMES/: complete state of the run, see `record.checkpoints`
  .changed         names of the options that differ from their defaults
  .origin          path and inode of the folder when it was created, see `RunFolder.is_own`
  logs/            output of child processes and their environments: actor_0.log, learner_0.log, ...
  tracking/        files of `--track`
  report/          output of `pbt-rl report`
  .lock            locked while a process writes the run, see `record.run_lock`
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from difflib import get_close_matches
from glob import escape, glob
from pathlib import Path
from typing import Any

from pbt_rl.config import Config, Hypers, undeclared_hypers
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import Option, build, table
from pbt_rl.options.renamed import present_config
from pbt_rl.options.values import as_type

ORIGIN, CHANGED = ".origin", ".changed"


class RunFolder:
    """Paths of the files of one run, and writers of the small JSON files. Files and folder may be missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        """Config as JSON, see `to_json`."""
        self.journal = path / "journal.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        """Folder of checkpoints, see `record.checkpoints`."""
        self.logs = path / "logs"
        self.population_events = path / "population"
        """Folder of the population's TensorBoard events."""

    @property
    def is_run(self) -> bool:
        """True if the folder contains a config. False for an invalid or unreadable path."""
        return os.path.isfile(self.config)  # noqa: PTH113 - Path.is_file raises for such a path

    def lacks(self, name: str) -> str:
        """Return the error message about a missing file. name: name of the file.

        If the folder is not a run, the message contains a hint at other runs, if there are any.
        """
        if self.is_run:
            return f"{self.path} has no {name}: restore the file"
        inside, there = _runs_in(self.path), os.path.lexists(self.path)
        hint = f"; it contains runs: give the folder of a run, such as {inside[0]}" if inside else ""
        if not there:
            beside = {run.name: run for run in (*_runs_in(Config.out), *_runs_in(self.path.parent))}
            near = get_close_matches(self.path.name.lower(), beside, n=1, cutoff=0.5)
            near += [run for run in beside if self.path.name.lower() in run.lower()]
            hint = f"; `pbt-rl runs` lists the runs in {Config.out}" if beside else ""
            hint = f"; did you mean {beside[near[0]]}?" if near else hint
        return f"{self.path} is not the folder of a run: {f'it has no {name}' if there else 'it does not exist'}{hint}"

    def member_events(self, member: int) -> Path:
        """Return the folder of a member's TensorBoard events."""
        return self.path / _policy(member)

    def values(self, member: int) -> Path:
        """Return the file with a member's current values."""
        return self.path / f"{_policy(member)}.json"

    def write_values(self, member: int, generation: int, values: Values) -> None:
        """Write a member's current values to a file for the user. Raises OSError if writing fails."""
        content = {
            "member": member,
            "generation": generation,
            "hypers": {k: v for k, v in values.items() if not k.startswith(SHAPING)},
            "shaping": {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)},
        }
        write_whole(self.values(member), json.dumps(content, indent=2) + "\n", sync=False)

    def write_config(self, config: Config) -> None:
        """Write the config, and the names of the options that differ from their defaults.

        Raises OSError if writing fails.
        """
        names = [option.field for option in table(config).values() if option.of(config) != option.default]
        write_whole(self.path / CHANGED, json.dumps(names) + "\n")
        write_whole(self.config, json.dumps(to_json(config), indent=2) + "\n")

    def at_default(self, field: str) -> bool:
        """Check whether an option, or each option of a group, had its default value when the config was written.

        field: config field such as `pbt.tune`, or a group such as `pbt`. The option need not exist in this version of
        pbt_rl. False if unknown.
        """
        try:
            changed = json.loads((self.path / CHANGED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        known = isinstance(changed, list) and all(isinstance(name, str) for name in changed)
        return known and not any(name == field or name.startswith(f"{field}.") for name in changed)

    def write_origin(self, path: Path) -> None:
        """Write the file `.origin` in a new folder. path: final path of the folder. Raises OSError if writing fails."""
        write_whole(self.path / ORIGIN, json.dumps([os.path.realpath(path), self.path.stat().st_ino]) + "\n")

    @property
    def is_own(self) -> bool:
        """True if the user created the folder at this path, and owns the config, the journal and the checkpoints.

        False for a copied, moved or unpacked folder, because the path or the inode differs from `.origin`. False if
        all users may write one of these files, or if a file is a symbolic link.
        """
        run = RunFolder(Path(os.path.realpath(self.path)))
        try:
            made = json.loads((run.path / ORIGIN).read_text(encoding="utf-8"))
            files = [run.path, run.path / ORIGIN, run.config, run.journal, run.checkpoints]
            files += run.checkpoints.rglob("*")
            there = [found for path in files if (found := _found(path)) is not None]
        except (OSError, ValueError):
            return False
        return made == [str(run.path), there[0].st_ino] and not any(
            one.st_uid != os.geteuid() or one.st_mode & stat.S_IWOTH or stat.S_ISLNK(one.st_mode)
            for one in there
        )

    def write_summary(self, content: Mapping[str, Any]) -> None:
        """Write the run's summary.json. NaN and infinities are written as null. Raises OSError if writing fails."""
        write_whole(self.summary, json.dumps(finite_only(dict(content)), indent=2, allow_nan=False) + "\n")


def _found(path: Path) -> os.stat_result | None:
    """Return the file's status, not following links. None if it does not exist: a running run removes checkpoints."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _runs_in(folder: Path) -> list[Path]:
    found = glob(f"{escape(str(folder))}/*/config.json")  # noqa: PTH207 - Path raises for a long name
    return [Path(config).parent for config in sorted(found)]


def write_whole(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a file atomically. A reader finds either the old content or the complete new content.

    sync: True to flush to disk, which makes the write atomic even if the power fails.
    If the write fails, OSError is raised, the old file is unchanged, and the temporary file is removed if possible. The
    next write replaces the temporary file of a killed process.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    try:
        with draft.open(
            "x", encoding="utf-8"
        ) as file:  # mode x, because another user may have created a symbolic link
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def made_name(config: Config) -> str:
    """Return an unused run name, made from the environment, the time and, if necessary, a number."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env).strip(".-") or "run"
    made = f"{env}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (made if count == 1 else f"{made}-{count}" for count in itertools.count(1))
    return next(name for name in names if not os.path.lexists(config.out / name))


def to_json(config: Config) -> dict[str, Any]:
    """Convert a config to JSON types and tuples. `config_from_json` is the inverse."""
    data = dataclasses.asdict(config)
    data["out"] = str(config.out)
    data["pbt"]["tune"] = list(config.pbt.tune)
    if len(config.model.hidden) == 1:  # as earlier versions wrote it
        (data["model"]["hidden"],) = config.model.hidden
    return data


def config_from_json(data: object, at_default: Callable[[str], bool] = lambda _: False) -> Config:
    """Build a config from the content of config.json, without imports of the modules that the config names.

    at_default: returns True if an option had its default value in the saved run. An option that exists only in other
    versions of pbt_rl is ignored if it had its default value.
    Raises ConfigError for an invalid config, and EnvSetupError for options that an environment family rejects.
    """
    if not isinstance(data, dict):
        raise ConfigError("the config in config.json should be an object")
    own = isinstance(data.get("algo"), str) and ":" in data["algo"]
    hypers = _hypers(data.get("hypers")) if own else Hypers
    known = {option.field: option for option in table(Config, hypers=hypers).values()}
    groups = {option.path[0] for option in known.values() if option.path[1:]}
    found: dict[str, object] = {}
    for name, value in present_config(data).items():
        if name in groups and not isinstance(value, dict):
            raise ConfigError(f"{name} in config.json should be an object")
        found |= {f"{name}.{inner}": v for inner, v in value.items()} if name in groups else {name: value}
    unknown = sorted(name for name in found.keys() - known.keys() if not at_default(name))
    if unknown:
        shown = ", ".join(name if name.replace(".", "").isidentifier() else repr(name) for name in unknown)
        raise ConfigError(f"config.json has unknown fields: {shown:.200}. Was it written by another version?")
    missing = [name for name, option in known.items() if option.default is MISSING and name not in found]
    if missing:
        raise ConfigError(f"config.json has no {', '.join(missing)}")
    return build(
        Config,
        {name: _typed(known[name], value) for name, value in found.items() if name in known},
        hypers=hypers,
    )


def _hypers(data: object) -> type[Hypers]:
    """Return a class with the hyperparameters of a custom algorithm, without an import of this algorithm."""
    registered = {option.field for option in table(Hypers).values()}
    more = tuple(
        (name, type(value))
        for name, value in (data.items() if isinstance(data, dict) else ())
        if name not in registered and name.isidentifier() and type(value) in (int, float)
    )
    return undeclared_hypers(more) if more else Hypers


def _typed(option: Option, value: object) -> Any:
    try:
        return as_type(option.hint, value)
    except ValueError as expected:
        raise ConfigError(f"{option.field} in config.json cannot be used: it should be {expected}") from None


def _policy(member: int) -> str:
    return f"policy_{member:02d}"


def finite_only(value: Any) -> Any:
    """Replace NaN and infinities in dicts and lists by None, because JSON cannot represent them."""
    if isinstance(value, dict):
        return {key: finite_only(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite_only(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
