"""Runs side by side: those that differ only in their seed form a group, whose spread is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from pbt_rl.report.read import History

NO_DIFFERENCE = frozenset(
    {
        "seed", "name", "out", "overwrite", "resume", "figures", "track", "devices", "actors", "units_per_actor",
        "envs_per_unit", "actor_timeout_seconds", "learner_timeout_seconds", "max_actor_restarts",
        "save_every_seconds", "save_every_frames", "keep_checkpoints", "evaluate_every_frames",
        "evaluate_video", "learner.threads", "learner.packing",
    }
)  # fmt: skip
"""Options by which runs of one group may differ."""
DRAWS = "pbt.start_values"
"""An experiment writes what a seed has drawn there."""
NOT_TIMED = {"train_for_frames", "pbt.period_frames", "pbt.start_frames"}
"""If members are compared by time: estimates, from a speed that was measured."""
MOST_OPTIONS = 4
"""Named in the label of a group."""


@dataclass(frozen=True)
class Group:
    """Runs with the same options, but for the seed. label: the options in which it differs from the other groups."""

    label: str
    runs: tuple[History, ...]

    @property
    def best(self) -> list[float]:
        """The best objective at the end of each run that has one."""
        return [o for run in self.runs if run.ranking and (o := best_objective(run)) is not None]


def best_objective(run: History) -> float | None:
    """Return the last known objective of a run's best member."""
    return run.objective(run.last[run.ranking[0]]) if run.ranking else None


def mean_objective(run: History) -> float | None:
    """Return the mean of the last known objectives of a run's members."""
    known = [o for member in run.ranking if (o := run.objective(run.last[member])) is not None]
    return fmean(known) if known else None


def mean_and_deviation(numbers: Sequence[float]) -> str:
    """Return `mean ± sample deviation`, or the only number."""
    if not numbers:
        return "-"
    return f"{fmean(numbers):.4g}" + (f" ± {stdev(numbers):.2g}" if len(numbers) > 1 else "")


def groups(runs: Sequence[History]) -> list[Group]:
    """Put the runs into groups, in the order in which the first of each was given."""
    options = [dict(_flat(run.config)) for run in runs]
    keys = _keys(options, NO_DIFFERENCE | {DRAWS})
    by_seed = {(key, one.get("seed")): one.get(DRAWS) for key, one in zip(keys, options, strict=True)}
    if any(by_seed[key, o.get("seed")] != o.get(DRAWS) for key, o in zip(keys, options, strict=True)):
        keys = _keys(options, NO_DIFFERENCE)  # not drawn by the seed, but given by people
    found: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    first = [options[numbers[0]] for numbers in found.values()]
    names = sorted({name for one in first for name in one} - NO_DIFFERENCE)
    differing = [n for n in names if len({json.dumps(one.get(n)) for one in first}) > 1]
    made = []
    for numbers, one in zip(found.values(), first, strict=True):
        label = ", ".join(f"{n} {_shown(one.get(n))}" for n in differing[:MOST_OPTIONS])
        made.append(Group(label or runs[numbers[0]].name, tuple(runs[i] for i in numbers)))
    return _distinct(made)


def _keys(options: Sequence[Mapping[str, Any]], left_out: AbstractSet[str]) -> list[str]:
    """Return for each run a text that is the same for runs of one group."""
    return [
        json.dumps(
            {k: v for k, v in one.items() if k not in left_out | (NOT_TIMED if _timed(one) else set())},
            sort_keys=True,
        )
        for one in options
    ]


def _timed(one: Mapping[str, Any]) -> bool:
    return one.get("pbt.ready") == "timed"


def _distinct(made: Sequence[Group]) -> list[Group]:
    """Name groups by their runs where the options that are shown do not tell them apart."""
    labels = [group.label for group in made]
    return [Group(f"{g.label} ({g.runs[0].name})", g.runs) if labels.count(g.label) > 1 else g for g in made]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
