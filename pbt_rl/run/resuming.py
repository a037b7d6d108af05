"""What a run begins from: its own last whole checkpoint, or what other runs have saved.

A run is continued on this machine, with options that may differ in part. With `--init-from` members begin from saved
ones instead of from drawn weights. They take arrays alone: their hypers and shaping are this run's own, and their
frames, steps, updates and the learning rate's schedule begin at 0. Nothing that the other run's config names is
imported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_pack, net_names
from pbt_rl.learner.continuation import unit_rows
from pbt_rl.options import walk
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.records import Whole, converted
from pbt_rl.plan import Plan
from pbt_rl.population.dispatch import Read
from pbt_rl.record.checkpoints import PARTIAL, Checkpoint, Checkpoints
from pbt_rl.record.folder import RunFolder, config_from_json, to_json
from pbt_rl.record.headers import STATE
from pbt_rl.record.journal import was_saved
from pbt_rl.record.net_names import WEIGHTS, Arrays, Fitted, NetNames, Saved, fit, read_saved
from pbt_rl.record.saved import Source, find_saved, read_config
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.wire.messages import Load
from pbt_rl.wire.store import MemberSnapshot, SnapshotHeader

Changed = dict[str, tuple[Any, Any]]
"""Option -> (value until now, value from now on)."""
OF_THE_COMMAND = frozenset({"name", "out", "overwrite", "resume"})
"""Options that say which run is meant and what to do with it: to give others changes nothing in the run."""


@dataclass(frozen=True)
class Continued:
    """A run to be continued."""

    checkpoint: Checkpoint
    state: dict[str, Any]
    changed: Changed

    @property
    def record(self) -> dict[str, Any]:
        """Where the files of the record stood: see `Recorder.positions`."""
        record: dict[str, Any] = self.state["record"]
        return record

    @property
    def value_names(self) -> frozenset[str]:
        """Names of its members' values, which it keeps. Raises ConfigError if its state is not whole."""
        try:
            return frozenset(self.state["run"]["population"]["members"][0]["values"])
        except (LookupError, TypeError):
            raise ConfigError(
                f"{self.checkpoint.path} cannot be resumed: its state lacks the values of members"
            ) from None

    @property
    def resumes(self) -> int:
        """How often the run has been resumed, this time included."""
        return int(self.state["resumes"]) + 1

    def sources(self, names: NetNames) -> list[tuple[int, Read]]:
        """Return (member, what reads its state or a remembered one) of all that were saved."""
        saved = self.checkpoint
        found: list[tuple[int, Read]] = [
            (m.member, partial(saved.load, m.member, names)) for m in saved.members()
        ]
        found += [
            (m.member, partial(saved.load_remembered, m.member, m.generation, names))
            for m in saved.remembered()
        ]
        return found

    def start(
        self, slots: Sequence[tuple[Load | None, ...]], values: Values, plan: Plan, *, same_plan: bool
    ) -> Start:
        """Return where the processes begin. slots: what those of each pack hold. values: of a slot without a member."""
        return Start(
            slots,
            values,
            learners=self.state["learners"] if same_plan else (),
            units=self._units(plan) if same_plan else (),
            resumes=self.resumes,
        )

    def _units(self, plan: Plan) -> Sequence[Any]:
        """Return the states of the units, actor by actor; none if there are others now, which begin new episodes."""
        saved: list[list[Any]] = self.state["units"]
        rows = [unit_rows(unit) for learner in self.state["learners"] for unit in learner.get("units", ())]
        same = rows == [pack.rows for pack in plan.packs for _ in range(pack.units)] and [
            len(units) for units in saved
        ] == [pack.units_per_actor for pack in plan.packs for _ in range(pack.actors)]
        return saved if same else ()

    def begins_episodes(self, plan: Plan) -> bool:
        """Whether environments begin new episodes, as their state was not saved or they are others now."""
        return not self._units(plan)

    def found(self) -> str:
        """Say what the run is continued from."""
        members, age = self.checkpoint.members(), time.time() - self.checkpoint.time
        generations = [m.generation for m in members]
        return (
            f"resumes {self.checkpoint.path}: {len(members)} members with {self.checkpoint.frames:,} frames or more, "
            f"generations {min(generations)} to {max(generations)}, saved {_ago(age)} ago"
        )


def may_resume(config: Config) -> bool:
    """Return whether there is a run of this name that is not to be replaced."""
    exists = config.name is not None and RunFolder(config.out / config.name).is_run
    return exists and not config.overwrite


def find_continued(config: Config, folder: RunFolder, note: Callable[[str], None]) -> Continued | None:
    """Return what an existing run is continued from; None if it ended before it was saved for the first time.

    note: is told of checkpoints that are broken. Raises ConfigError if the run may not be continued with this config,
    or if all of its checkpoints are broken or gone.
    """
    if not config.resume:
        raise ConfigError(
            f"--name {config.name}: {folder.path} exists already, and --resume no was given: choose another name, or "
            "--overwrite"
        )
    before = read_config(folder.path)
    changes_of(before, config, folder)
    checkpoint = Checkpoints(folder.checkpoints).newest(note)
    if checkpoint is None:
        if any(not PARTIAL.fullmatch(path.name) for path in folder.checkpoints.glob("*")):
            raise ConfigError(
                f"{folder.path} cannot be continued: none of its checkpoints is whole; begin anew with --overwrite, or "
                "choose another --name"
            )
        if was_saved(folder.path):  # somebody has made room: what is left is all that there is of the run
            raise ConfigError(
                f"{folder.path} was saved, and its checkpoints are gone: put them back, begin anew with --overwrite, "
                "or choose another --name"
            )
        return None
    state = _state(checkpoint)
    # What was changed since the checkpoint is in config.json; the journal is cut off before that.
    saved = config_from_json(state["record"].get("config", to_json(before)))
    return Continued(checkpoint, state, _differing(saved, config))


@dataclass(frozen=True)
class _SavedRecord:
    """Where the files of the record stood."""

    journal: Whole
    tensorboard: dict[str, Any]


@dataclass(frozen=True)
class _SavedState:
    """The outer levels of a run's state; who continues from a part of it reads the inner ones."""

    record: _SavedRecord
    run: Any
    resumes: Whole
    learners: list[dict[str, Any]]
    units: list[list[Any]]


def _state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of a run, checked. Raises ConfigError."""
    state = checkpoint.state()
    converted(state, _SavedState, f"{checkpoint.path / STATE}", strict=True)
    return state


@contextlib.contextmanager
def fitting_state(folder: RunFolder) -> Iterator[None]:
    """Turn the ValueError of a saved state that does not fit the options into the user's error."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{folder.path} cannot be continued with these options: {error}") from error


def changes_of(before: Config, now: Config, folder: RunFolder) -> Changed:
    """Return the options that differ. Raises ConfigError if one of them may not."""
    differing = _differing(before, now)
    metadata = {name: declared for name, declared, _ in walk(now)}
    fixed = [
        f"--{name}: {_text(old)} there, {_text(new)} now"
        for name, (old, new) in differing.items()
        if "may_change" not in metadata[name]
    ]
    if fixed:
        raise ConfigError(
            f"{folder.path} was trained with other options: {'; '.join(fixed)}. Give the same ones to continue it "
            f"(pbt-rl resume {folder.path} needs none), another --name, or --overwrite to begin anew"
        )
    return differing


def _differing(before: Config, now: Config) -> Changed:
    there = {name: value for name, _, value in walk(before)}
    changes = {name: (there.get(name), new) for name, _, new in walk(now) if name not in OF_THE_COMMAND}
    return {name: (old, new) for name, (old, new) in changes.items() if old != new}


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


SUFFIX = ".safetensors"
MAX_LINES = 20


@dataclass(frozen=True)
class Origin:
    """What members begin from. text: as the user wrote it; found: what that is."""

    text: str
    found: str
    saved: Saved


@dataclass(frozen=True)
class WarmStart:
    """Where every member begins: origins: one for all, or one of each."""

    resolved: ResolvedRun
    origins: tuple[Origin, ...]
    skipped: tuple[tuple[str, ...], ...]
    """Of each origin: what it lacks or has in another shape, with the reason."""

    @classmethod
    def find(cls, resolved: ResolvedRun, note: Callable[[str], None]) -> WarmStart | None:
        """Read what --init-from names and lay it over this run's network; None without --init-from.

        note: is told of checkpoints that are passed over. Raises ConfigError if there is no such member, if its file is
        damaged, or if it does not fit, naming the layers.
        """
        origins = tuple(_origin(text, note) for text in resolved.config.init_from)
        if not origins:
            return None
        names, fresh = _fresh(resolved, 0)
        return cls(resolved, origins, tuple(_checked(one, names, fresh, resolved.config) for one in origins))

    def origin(self, member: int) -> Origin:
        """Return where a member begins."""
        return self.origins[member % len(self.origins)]

    def sources(self, values: Sequence[Values], names: NetNames) -> list[tuple[int, Read]]:
        """Return (member, what reads the state that it begins with). values: of every member."""
        return [(m, partial(self._snapshot, m, own, names)) for m, own in enumerate(values)]

    def _snapshot(self, member: int, values: Values, names: NetNames) -> MemberSnapshot:
        _, fresh = _fresh(self.resolved, member)
        fitted = _fit(self.origin(member), names, fresh, self.resolved.config, strict=False)
        # Its factor belongs to the schedule of the other run.
        arrays = fitted.arrays | {"lr_factor": fresh["lr_factor"]}
        header = SnapshotHeader(member, 0, values, frames=0, steps=0, updates=0, fresh_frames=0)
        return MemberSnapshot(header, arrays)

    def described(self) -> list[str]:
        """Return lines about who begins where, and what was skipped."""
        lines = []
        for number, (origin, skipped) in enumerate(zip(self.origins, self.skipped, strict=True)):
            who = "all members begin" if len(self.origins) == 1 else f"member {number} begins"
            lines.append(f"{who} from {origin.found} ({self.resolved.config.init_parts})")
            lines += [f"  not loaded: {reason}" for reason in _shortened(skipped)]
        return lines

    def record(self) -> list[str]:
        """Return where each member begins, in order of id."""
        return [self.origin(member).found for member in range(self.resolved.config.members)]


def _origin(text: str, note: Callable[[str], None]) -> Origin:
    source = Source.of(text)
    if source is not None:
        policy = find_saved(source, note)
        checkpoint, member = policy.checkpoint, policy.member
        return Origin(text, str(policy), Saved(checkpoint.file(member), *checkpoint.tensors(member)))
    if text.endswith(SUFFIX):
        return Origin(text, text, read_saved(Path(text)))
    raise ConfigError(
        f"--init-from {text} cannot be used: write a member of a run as RUN[@FRAMES][:MEMBER], with its folder, "
        f"or a file of a member that ends in {SUFFIX}"
    )


def _fresh(resolved: ResolvedRun, member: int) -> tuple[NetNames, Arrays]:
    """Return the state that a member of this run begins with otherwise."""
    plan = replace(resolved.plan.packs[0], members=(member,), slots=1, device="cpu")
    values = {name: spec.default for name, spec in resolved.table.items()}
    pack = build_pack(resolved.config, resolved.spec, plan, [values], resolved.config.seed)
    return net_names(pack), {name: tensor.numpy() for name, tensor in pack.export_member(0).items()}


def _fit(origin: Origin, names: NetNames, fresh: Arrays, config: Config, *, strict: bool) -> Fitted:
    return fit(
        origin.saved,
        names,
        fresh,
        strict=strict,
        optimizer=config.init_parts == "all",
        normalisers=config.init_parts != "weights",
    )


def _checked(origin: Origin, names: NetNames, fresh: Arrays, config: Config) -> tuple[str, ...]:
    """Return what would be skipped. Raises ConfigError if that may not be, or is everything."""
    fitted = _fit(origin, names, fresh, config, strict=False)
    if fitted.skipped and config.init_strict:
        try:
            _fit(origin, names, fresh, config, strict=True)
        except ConfigError as error:
            raise ConfigError(
                f"--init-from {origin.text} cannot be used: {error}\n"
                "Give the options of that run (--model..., --learner.normalize-observations, "
                "--learner.normalize-images), leave parts out (--init-parts weights), or load what fits "
                "(--init-strict no)"
            ) from error
    # One bias or the other fits every network.
    if not any(name.startswith(WEIGHTS) and origin.saved.tensors[name].ndim > 1 for name in fitted.loaded):
        raise ConfigError(f"--init-from {origin.text} cannot be used: none of its weights fits this network")
    return fitted.skipped


def _shortened(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more]
