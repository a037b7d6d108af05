"""`pbt-rl audit RUN --what-if NAME=VALUE ...`: recompute the decisions on recorded scores with other rules.

The result is exact up to the first decision that differs. Later results are labelled as estimates, because a run with
the other rules would have other weights and scores after this decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.controllers.decide import Mismatch, audit_decisions
from pbt_rl.controllers.decisions import Decision, Replace
from pbt_rl.controllers.lookup import controller_entry
from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError, require
from pbt_rl.options.declare import Option, changed, table
from pbt_rl.options.names import spelt
from pbt_rl.options.words import split, typed
from pbt_rl.report.audit import ComparisonCounter, Recorded
from pbt_rl.run.resolved import build_controller
from pbt_rl.run.shown import of_rules

OF_SCORES = ("objective_episodes", "evaluate_episodes", "tune", "prior", "start_values", "enabled")
"""PBT options that influence the recorded scores."""
OF_TIMES = ("ready", "period", "start_frames", "start_seconds", "min_episodes")
"""Prefixes of the PBT options that change the times of comparisons."""
MOST_LINES = 20


@dataclass(frozen=True)
class WhatIf:
    """Decisions that rules other than the run's make on recorded scores.

    differing: comparisons in which these decisions differ from the recorded decisions, oldest first.
    """

    counter: ComparisonCounter
    differing: Sequence[Mismatch]

    @property
    def exact_comparisons(self) -> int:
        """Number of comparisons before the first decision that differs."""
        return sum(not self.differing or index < self.differing[0].index for index in self.counter.frames)

    @property
    def replacements(self) -> int:
        """Number of replacements by the other rules."""
        gained = sum(_replacements(one.decided) - _replacements(one.recorded) for one in self.differing)
        return self.counter.replacements + gained


def with_rules(config: Config, words: Sequence[str], run: Path) -> Config:
    """Return a copy of the config with changed options of decision rules.

    words: changed options as NAME=VALUE. run: folder of the run, for errors.
    Raises ConfigError for an option that cannot be used.
    """
    for word in words:
        name, given, value = word.partition("=")
        name = spelt(name)
        field_name = name.removeprefix("pbt.").replace("-", "_")
        require(bool(given), "what-if", word, "give NAME=VALUE, such as pbt.exploit=t-test")
        require(
            name.startswith("pbt.") or name == "controller",
            "what-if",
            word,
            f"the scores of {run} are recorded: give options of decision rules, such as pbt.exploit=t-test",
        )
        fixed = "the recorded scores depend on it" if field_name in OF_SCORES else ""
        if field_name.startswith(OF_TIMES):
            fixed = "scores are recorded only at the times of the run's comparisons"
        require(not fixed, "what-if", word, f"{fixed}: train again with --{name} {value}")
    options = table(config)
    arguments = [part for word in words for part in _as_typed(word.removeprefix("--"), options)]
    other = changed(config, typed(options, split(arguments), "pbt-rl train"))
    unread = dict(of_rules(other))
    for word in words:
        name = spelt(word.partition("=")[0])
        if name in options and options[name].field in unread:
            raise ConfigError(
                f"--what-if {word} cannot be used, because it has no effect: {unread[options[name].field]}"
            )
    return other


def _as_typed(word: str, options: Mapping[str, Option]) -> list[str]:
    """Convert NAME=VALUE to words of a command line. In VALUE of a list option, commas separate the entries."""
    name, _, value = word.partition("=")
    option = options.get(spelt(name))
    several = option is not None and option.is_list
    return [f"--{name}", *value.split(",")] if several else [f"--{word}"]


def decide_again(recorded: Recorded, words: Sequence[str]) -> WhatIf:
    """Recompute the decisions of all recorded comparisons, with the rules in `words`.

    Raises ConfigError if the run cannot be recomputed, or an option cannot be used.
    """
    run = recorded.run
    other = with_rules(recorded.config, words, run)
    own = recorded.config.pbt.exploit
    postpones = (own == "backtrack" or ":" in own) and other.pbt.exploit != own
    for one in (recorded.config, other):
        entry = controller_entry(one.controller)
        require(
            not (entry.searches or entry.follows) and one.pbt.enabled and not postpones,
            "what-if",
            " ".join(words),
            f"the times of comparisons of controller {one.controller}, rule {own}, depend on its own decisions",
        )
    counter = ComparisonCounter(run, recorded.events)
    controller = build_controller(other, recorded.table(other), other.seed)
    differing = audit_decisions(
        counter,
        controller,
        lambda event, state: recorded.resumed(event, state, lambda config: with_rules(config, words, run)),
    )
    return WhatIf(counter, differing)


def what_if(run: Path, words: Sequence[str], trust: bool = False) -> int:
    """Print the differences between the recorded decisions and those with the rules in `words`. Return 0.

    Raises ConfigError if the run cannot be recomputed, or an option cannot be used.
    """
    found = decide_again(Recorded.open(run, trust), words)
    counter = found.counter
    print(f"{run} with {' '.join(words)}: {counted(len(counter.frames), 'recorded comparison')} recomputed")
    if not found.differing:
        print("all decisions agree bit for bit with the recorded decisions: these rules produce the same run")
    lines = []
    for number, one in enumerate(found.differing):
        frames = counter.frames.get(one.index, 0)
        if number == 0:
            print(
                f"exact for the first {found.exact_comparisons} comparisons; first difference at {frames:,} frames"
            )
        estimate = " (estimate)" if number else ""
        lines += [f"  {frames:,} frames{estimate}, {other}" for other in described(one)]
    if lines:
        print("\n".join(lines[:MOST_LINES]))
    if len(lines) > MOST_LINES:
        print(f"  and {len(lines) - MOST_LINES} more")
    print(f"replacements: {counter.replacements} recorded, {found.replacements} with these rules")
    return 0


def described(one: Mismatch) -> list[str]:
    """Return one line for each member whose recomputed decision has another action or donor than the recorded one.

    Without such a member, return one line: only values differ.
    """
    recorded, decided = (
        {d.member: _named(d) for d in made if not isinstance(d, dict)} for made in (one.recorded, one.decided)
    )
    pairs = [(m, recorded.get(m), decided.get(m)) for m in sorted(recorded | decided)]
    lines = [f"member {m}: {own or UNSEEN} -> {other or UNSEEN}" for m, own, other in pairs if own != other]
    return lines or ["only values differ"]


UNSEEN = "not compared"


def _named(decision: Decision) -> str:
    """Describe a decision without its values. (The values depend on earlier random numbers.)"""
    if isinstance(decision, Replace):
        return f"copies member {decision.donor}"
    kind = type(decision).__name__.lower()
    return f"{kind}s" if kind in ("mutate", "continue", "restart") else kind


def _replacements(decisions: Sequence[object]) -> int:
    return sum(isinstance(one, Replace) for one in decisions)
