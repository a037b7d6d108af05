"""`pbt-rl audit RUN --what-if NAME=VALUE ...`: recompute the decisions on recorded scores with other rules.

The result is exact up to the first difference, because until then the other rules produce the same run. Later results
are labelled as estimates: the other run would have had different weights and scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import structs

from pbt_rl.config import Config
from pbt_rl.controllers.controllers import PbtController, innermost
from pbt_rl.controllers.decide import Resumed, with_values
from pbt_rl.controllers.decisions import Controller, Decision, MemberReport, PopulationReport, Replace
from pbt_rl.controllers.events import Event, Initial, Lost, Resume, Round
from pbt_rl.controllers.lineage import LEVEL, Lineage, Noise
from pbt_rl.controllers.lookup import controller_entry
from pbt_rl.controllers.state import save_state
from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.declare import Option, changed, table
from pbt_rl.options.names import spelt
from pbt_rl.options.words import split, typed
from pbt_rl.registry import READY_RULES
from pbt_rl.report.audit import Recorded
from pbt_rl.run.resolved import build_controller
from pbt_rl.run.shown import of_rules

OF_SCORES = ("objective_episodes", "evaluate_episodes", "tune", "prior", "start_values", "enabled")
"""PBT options that influenced the recorded scores."""
OF_TIMES = ("ready", "ready_fraction")
"""Options that may move comparisons to times without recorded scores."""
MOST_LINES = 20
KEEPS, UNSEEN = "continues", "not compared"


@dataclass(frozen=True)
class Other:
    """A changed decision. recorded, decided: as text. exact: True if no difference came before."""

    frames: int
    member: int
    recorded: str
    decided: str
    exact: bool


@dataclass
class WhatIf:
    """Result of other rules on recorded scores."""

    rounds: int = 0
    exact_rounds: int = 0
    """Rounds before the first difference, with decisions identical bit for bit."""
    first: str = ""
    """Place and reason of the first difference; empty if there is none."""
    others: list[Other] = field(default_factory=list)
    replacements: int = 0
    """Number of replacements by the other rules."""
    noise: Noise = field(default_factory=Noise)
    """Noise of the recorded rounds."""


def decide_again(
    events: Iterable[Event],
    own: Controller,
    other: Controller,
    resumed: tuple[Resumed, Resumed],
    *,
    times_known: bool = True,
) -> WhatIf:
    """Recompute the recorded rounds with the run's own rules and with other ones, both unused. Raises ConfigError.

    times_known: the other rules compare only at times at which the run's own rules compare too. resumed: see
    `Recorded`, one for each controller.
    """
    found, lineage = WhatIf(), Lineage()
    last, due = PopulationReport(0, ()), (0.0, 0.0)
    if not times_known:
        found.first = "from the start: these rules may compare at times without recorded scores"
    for event in events:
        report = with_values(event.report, lineage) if isinstance(event, Round) else None
        lineage.take(event)
        match event:
            case Lost(counts=counts) if counts.get("round"):
                raise ConfigError("rounds were lost while the disk was full, so they cannot be recomputed")
            case Initial(values=values):
                own.initial(len(values))
                if other.initial(len(values)) != list(values) and not found.first:
                    found.first = "at the start: these rules sample other values"
                fresh = tuple(MemberReport(m, 0, (), 0, 0) for m in range(len(values)))
                last = PopulationReport(0, fresh, 0.0)
                due = _due(own, last), _due(other, last)
            case Resume(changed=changes) if changes:
                own, other = resumed[0](event, save_state(own)), resumed[1](event, save_state(other))
                due = _due(own, last), _due(other, last)
            case Round(frames=frames, decisions=decisions):
                assert report is not None
                now, unit = (
                    (frames, "frames") if report.seconds is None else (report.seconds, "s of training")
                )
                if not found.first and due[1] < min(due[0], now):
                    found.first = f"at {due[1]:,} {unit}: these rules compare there, without recorded scores"
                own.observe(report)
                _compare(found, frames, list(decisions), other.observe(report))
                found.noise.note(event)
                last, due = report, (_due(own, report), _due(other, report))
    return found


def _compare(found: WhatIf, frames: int, recorded: Sequence[Decision], decided: Sequence[Decision]) -> None:
    found.rounds += 1
    found.replacements += sum(isinstance(d, Replace) for d in decided)
    exact = not found.first
    if exact and [*map(_without_reason, recorded)] == [*map(_without_reason, decided)]:
        found.exact_rounds += 1
        return
    if exact:
        found.first = f"at {frames:,} frames"
    pairs: dict[int, list[Decision | None]] = {}
    for own, other in zip_longest(recorded, decided):
        if own is not None:
            pairs.setdefault(own.member, [None, None])[0] = own
        if other is not None:
            pairs.setdefault(other.member, [None, None])[1] = other
    for member, (own, other) in sorted(pairs.items()):
        if _verdict(own) != _verdict(other) and {_verdict(own), _verdict(other)} != {KEEPS, UNSEEN}:
            found.others.append(Other(frames, member, _verdict(own), _verdict(other), exact))


def _without_reason(decision: Decision) -> Decision:
    """Return the decision without its reason, because the reason describes the rules, which differ."""
    return structs.replace(decision, reason="") if hasattr(decision, "reason") else decision


def _verdict(decision: Decision | None) -> str:
    """Name a decision without its values, because they depend on earlier random numbers."""
    if decision is None:
        return UNSEEN
    if isinstance(decision, Replace):
        return f"copies member {decision.donor}"
    return {"continue": KEEPS, "mutate": "mutates", "restart": "restarts"}.get(
        type(decision).__name__.lower(), type(decision).__name__.lower()
    )


@runtime_checkable
class ByTime(Protocol):
    """A readiness rule whose clock is `PopulationReport.seconds`."""

    def seconds_left(self, report: PopulationReport) -> float:
        """Return the seconds until a comparison is due; negative if it is overdue."""


def _due(controller: Controller, report: PopulationReport) -> float:
    """Return the time of a controller's next comparison, in frames or seconds as in its rule; 0 if unknown."""
    controller, report = innermost(controller, report)
    if not isinstance(controller, PbtController):
        return 0
    if isinstance(controller.ready, ByTime):
        return (report.seconds or 0.0) + controller.ready.seconds_left(report)
    return report.frames + controller.frames_left(report)


def with_rules(config: Config, words: Sequence[str], run: Path) -> Config:
    """Return the config with other decision rules, given as NAME=VALUE. Raises ConfigError."""
    for word in words:
        name, given, value = word.partition("=")
        name = spelt(name)
        field_name = name.removeprefix("pbt.").replace("-", "_")
        require(bool(given), "what-if", word, "give NAME=VALUE, such as pbt.exploit=t-test")
        require(
            name.startswith("pbt.") or name == "controller",
            "what-if",
            word,
            f"the scores of {run} are fixed: give options of decisions, such as pbt.exploit=t-test",
        )
        require(
            field_name not in OF_SCORES,
            "what-if",
            word,
            f"it influenced the recorded scores: train again with --{name} {value}",
        )
    options = table(config)
    arguments = [part for word in words for part in _as_typed(word.removeprefix("--"), options)]
    other = changed(config, typed(options, split(arguments), "pbt-rl audit --what-if"))
    require(
        READY_RULES[other.pbt.ready].by_time == READY_RULES[config.pbt.ready].by_time,
        "what-if",
        " ".join(words),
        f"{run} compared its members by --pbt.ready {config.pbt.ready}, so no times of another clock are recorded",
    )
    unread = dict(of_rules(other))
    for word in words:
        name = spelt(word.partition("=")[0])
        if name in options and options[name].field in unread:
            raise ConfigError(
                f"--what-if {word} cannot be used, because it has no effect: {unread[options[name].field]}"
            )
    return other


def _as_typed(word: str, options: Mapping[str, Option]) -> list[str]:
    """Convert NAME=VALUE to command-line words. Entries of a list option are separated by commas."""
    name, _, value = word.partition("=")
    option = options.get(spelt(name))
    several = option is not None and option.is_list
    return [f"--{name}", *value.split(",")] if several else [f"--{word}"]


def what_if(run: Path, words: Sequence[str], trust: bool = False) -> int:
    """Print the decisions of other rules; return the exit code. Raises ConfigError."""
    recorded = Recorded.open(run, trust)
    config = recorded.config
    other = with_rules(config, words, run)
    for one in (config, other):
        entry = controller_entry(one.controller)
        require(
            not (entry.searches or entry.follows) and one.pbt.enabled,
            "what-if",
            " ".join(words),
            f"controller {one.controller} does not compare members by rules that can be exchanged",
        )
    own_pbt, pbt = config.pbt, other.pbt
    postpones = own_pbt.exploit == "backtrack" or ":" in own_pbt.exploit
    times_known = (
        pbt.min_episodes >= own_pbt.min_episodes
        and all(getattr(pbt, name) == getattr(own_pbt, name) for name in OF_TIMES)
        and not (postpones and pbt.exploit != own_pbt.exploit)
    )

    def built(one: Config) -> Controller:
        return build_controller(one, recorded.table(one), one.seed)

    found = decide_again(
        recorded.events,
        built(config),
        built(other),
        (
            recorded.resumed,
            lambda event, state: recorded.resumed(event, state, lambda x: with_rules(x, words, run)),
        ),
        times_known=times_known,
    )
    print("\n".join(described(found, run, words)))
    return 0


def described(found: WhatIf, run: Path, words: Sequence[str]) -> list[str]:
    """Return the lines to print."""
    noise = found.noise
    lines = [f"{run} with {' '.join(words)}: {found.rounds} recorded rounds recomputed"]
    if not found.rounds:
        return [*lines, "no comparison is recorded, so there is nothing to recompute"]
    if not found.first:
        lines.append("all agree bit for bit with the recorded ones: these rules produce the same run")
    else:
        lines.append(
            f"exact for the first {found.exact_rounds} rounds; the first difference is {found.first}"
        )
        if not any(other.exact for other in found.others):
            lines.append("  (no member's decision differs there: only its values or its time)")
    for label, exact in (
        ("exact, at the first difference", True),
        ("estimates from the recorded scores, after it", False),
    ):
        shown = [o for o in found.others if o.exact == exact]
        if shown:
            one = "another" if len(shown) == 1 else "others"
            lines.append(f"{label}: {counted(len(shown), 'decision')} would have been {one}")
            lines += [
                f"  {o.frames:,} frames, member {o.member}: {o.recorded} -> {o.decided}"
                for o in shown[:MOST_LINES]
            ]
            lines += [f"  and {len(shown) - MOST_LINES} more"] if len(shown) > MOST_LINES else []
    lines.append(f"replacements: {noise.replacements} recorded, {found.replacements} with these rules")
    lines.append(
        f"{noise.within} of {noise.replacements} recorded replacements were within the noise of their windows "
        f"(Welch's test, p >= {LEVEL:g})"
    )
    return lines
