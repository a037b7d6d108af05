"""`pbt-rl audit RUN`: recompute the decisions of a run from its journal, and compare them bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from pbt_rl.config import Config
from pbt_rl.controllers.decide import Mismatch, audit_decisions
from pbt_rl.controllers.decisions import Controller, Replace
from pbt_rl.controllers.events import Comparison, Event, Initial, Lost, Resume, Start
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.record.folder import RunFolder, config_from_json
from pbt_rl.record.journal import git_version, journal_events
from pbt_rl.record.saved import AUDIT, check_trust
from pbt_rl.run.resolved import build_controller, resumed_controller, value_table
from pbt_rl.version import __version__

EXIT_OK, EXIT_DIFFERENT = 0, 1


def audit(run: Path, trust: bool = False) -> int:
    """Recompute all decisions of a run and print the result: agreement, or the first mismatch. Return the exit code.

    The environment is not needed, because the journal contains the defaults of shaping.
    trust: True to import custom rules and algorithms, even if another user made the run.
    Raises ConfigError if `run` is not the folder of a run, if the journal is incomplete, if another user's run names
    modules and `trust` is False, and for a run of `tune.run`.
    """
    recorded = Recorded.open(run, trust)
    config = recorded.config
    controller = build_controller(config, recorded.table(config), config.seed)
    counter = ComparisonCounter(run, recorded.events)
    mismatches = audit_decisions(counter, controller, recorded.resumed)
    made = f"{len(counter.frames)} comparisons with {counter.decisions} decisions"
    counted = f"{made}, and the initial values of all members"
    if not mismatches:
        print(f"{run}: {counted}, agree bit for bit with the recomputation")
        return EXIT_OK
    print(f"{run}: of {counted}, {len(mismatches)} differ from the recomputation")
    print(_described(mismatches[0], counter.frames.get(mismatches[0].index)) + _origin(recorded.start))
    return EXIT_DIFFERENT


@dataclass(frozen=True)
class Recorded:
    """Recorded run to recompute. config: options at the start of the run. events: iterator over all events."""

    run: Path
    trust: bool
    start: Start
    config: Config
    events: Iterator[Event]
    names: frozenset[str]
    """Names of the values that each member has."""

    @classmethod
    def open(cls, run: Path, trust: bool = False) -> Recorded:
        """Read the first events of a run. Raises ConfigError if it is missing, not trusted, or cannot be recomputed."""
        events = journal_events(run)
        head = _head(events)
        start, config = _first_event(run, head)
        check_trust(config, AUDIT, run, trust=trust)
        config = _declared(config, trust, run)
        first = next(event.values[0] for event in head if isinstance(event, Initial))
        return cls(run, trust, start, config, itertools.chain(head, events), frozenset(first))

    def table(self, config: Config) -> dict[str, HyperSpec]:
        """Return name -> HyperSpec of each value of the run's members. The options of `config` determine the specs."""
        return value_table(config, self.start.shaping, self.names)

    def resumed(
        self, event: Resume, state: Any, change: Callable[[Config], Config] = lambda c: c
    ) -> Controller:
        """Return the controller after a resume. state: the controller's state before the resume.

        change: function that is applied to the config of the resume.
        """
        config = config_from_json(event.config, RunFolder(self.run).at_default)
        check_trust(config, AUDIT, self.run, trust=self.trust)
        config = change(_declared(config, self.trust, self.run))
        try:
            return resumed_controller(config, self.table(config), config.seed, state, event.values)
        except ValueError as error:
            raise ConfigError(
                f"{self.run} cannot be recomputed from the point where it was resumed: {error}"
            ) from error


class ComparisonCounter:
    """Iterable over events that counts comparisons, decisions and replacements. Events are not stored."""

    def __init__(self, run: Path, events: Iterable[Event]) -> None:
        self._run, self._events = run, events
        self.decisions = self.replacements = 0
        self.frames: dict[int, int] = {}
        """Index of a `Comparison` in the journal -> population clock in frames."""

    def __iter__(self) -> Iterator[Event]:
        """Yield the events. Raises ConfigError if comparisons were lost while the disk was full."""
        for index, event in enumerate(self._events):
            match event:
                case Lost(counts=counts) if lost := counts.get("round"):
                    raise ConfigError(
                        f"{self._run} cannot be audited: {lost} of its comparisons were lost while the disk was full"
                    )
                case Comparison(frames=frames, decisions=decisions):
                    self.frames[index] = frames
                    self.decisions += len(decisions)
                    self.replacements += sum(isinstance(one, Replace) for one in decisions)
            yield event


def _declared(config: Config, trust: bool, run: Path) -> Config:
    """Return the config with the hyperparameters of a custom algorithm.

    The algorithm is imported only if the config has hyperparameters of it. Raises ConfigError if it is not trusted.
    """
    if all("bounds" in option.metadata for option in table(config.hypers).values()):
        return config
    check_trust(config, ("algo",), run, trust=trust)
    return config.with_declared_hypers()


def _head(events: Iterator[Event]) -> list[Event]:
    """Return the events of a journal up to its first event `Initial` or `Comparison`, including this event.

    Without such an event, return all events.
    """
    head = []
    for event in events:
        head.append(event)
        if isinstance(event, Initial | Comparison):
            break
    return head


def _first_event(run: Path, events: Sequence[Event]) -> tuple[Start, Config]:
    """Return the first event of a journal, and the config of the run. events: result of `_head`.

    Raises ConfigError if the journal belongs to a run of `tune.run`, or is incomplete.
    """
    if not events or not isinstance(events[0], Start):
        raise ConfigError(
            f"{run} is not the folder of a run: its journal does not begin with the event `start`"
        )
    if "api" in events[0].config:
        raise ConfigError(f"{run} is a run of tune.run: audit it from Python by tune.audit(folder, space)")
    config = config_from_json(events[0].config, RunFolder(run).at_default)
    members = next((len(event.values) for event in events if isinstance(event, Initial)), None)
    if members != config.members:
        raise ConfigError(
            f"{run} cannot be audited: its journal was started with {config.members} members, but has initial values "
            f"for {'none' if members is None else members}"
        )
    return events[0], config


def _described(mismatch: Mismatch, frames: int | None) -> str:
    """Format a mismatch. frames: population clock of the comparison. None: the initial values differ."""
    pairs = itertools.zip_longest(mismatch.recorded, mismatch.decided)
    recorded, decided = next((a, b) for a, b in pairs if a != b)
    where = "values at the start" if frames is None else f"comparison at {frames:,} frames"
    lines = [f"first in line {mismatch.index + 1} of the journal, the {where}:"]
    for label, one, other in (("recorded", recorded, decided), ("recomputed", decided, recorded)):
        lines.append(f"  {label}: {_differing(one, other)}")
    return "\n".join(lines)


def _differing(one: Any, other: Any) -> str:
    """Describe a decision or start values. If `other` has an equal type, list only the fields that differ."""
    if one is None:
        return "nothing"
    if type(one) is not type(other):
        return str(one)
    kind = "values" if isinstance(one, dict) else f"{type(one).__name__} of member {one.member}"
    flat, flat_other = (_flat(x if isinstance(x, dict) else structs.asdict(x)) for x in (one, other))
    parts = [f"{name} {flat[name]!r}" for name in flat if flat[name] != flat_other.get(name)]
    return f"{kind}: " + ", ".join(parts)


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k != "values"} | dict(fields.get("values", {}))


def _origin(start: Start) -> str:
    """Return a note if another version or commit of pbt_rl recorded the run, because it may decide differently.

    Otherwise, return an empty text.
    """
    then, now = (start.versions.get("pbt_rl"), start.git), (__version__, git_version())
    if then == now:
        return ""
    recorded = f"pbt_rl {_shown(then[0])} (source {_shown(then[1])})"
    return f"\nnote: {recorded} recorded the run, and version {now[0]} ({now[1]}) is installed"


def _shown(text: str | None) -> str:
    return (
        "of an unknown version" if text is None else f"{text:.60}" if text.isprintable() else f"{text!r:.60}"
    )
