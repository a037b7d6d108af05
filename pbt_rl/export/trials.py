"""`pbt-rl export RUN --format optuna`: what a run has tried, as an Optuna study that its dashboard shows.

A trial is one member between two changes (a node of the lineage): its values are the parameters, its objectives while
it trained the intermediate values, the last one the trial's value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.errors import ConfigError
from pbt_rl.export.formats import require_packages
from pbt_rl.pbt.history.lineage import Node
from pbt_rl.pbt.hypers import Values
from pbt_rl.report.read import History, read_run

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

FILE = "optuna.journal"
LOG_RATIO = 10.0
"""Positive values that differ by more than this factor are shown on a logarithmic scale."""


def export_trials(run: Path, out: Path | None = None) -> Path:
    """Write a run's trials to a journal storage of Optuna, under the run's name; return the file.

    run: folder of `pbt-rl train` or of `tune.run`. Raises ConfigError if it is not one, Optuna is missing, or the file
    cannot be written.
    """
    require_packages("optuna", {"optuna": "optuna"})
    import optuna  # noqa: PLC0415 - an extra
    from optuna.storages import JournalStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    history = read_run(run)
    folder = out or run / "export"
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it is written whole; nothing else belongs into it
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(storage=storage, study_name=history.name, direction="maximize")
        study.add_trials(trials(history))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return path


def trials(history: History) -> list[FrozenTrial]:
    """Return all trials of a run, in the order in which they began."""
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415

    nodes = sorted(history.lineage.nodes, key=lambda node: (node.frames, node.member, node.generation))
    names = history.varied
    distributions = {
        name: _distribution(name, [n.values for n in nodes if name in n.values]) for name in names
    }
    seen: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for member, points in history.curves.items():
        for point in points:
            if point.objective is not None and math.isfinite(point.objective):
                seen[member, point.generation][point.frames] = point.objective
    made = []
    for node in nodes:
        value = history.objective(node)
        given = {name: distributions[name] for name in names if name in node.values}
        made.append(
            create_trial(
                state=TrialState.FAIL if value is None else TrialState.COMPLETE,
                value=value,
                params={
                    name: _param(distribution, node.values[name]) for name, distribution in given.items()
                },
                distributions=given,
                intermediate_values=seen[node.key],
                user_attrs=_attributes(node),
            )
        )
    return made


def _attributes(node: Node) -> Mapping[str, Any]:
    parent = (
        "fresh weights" if node.parent is None else f"member {node.parent[0]}, generation {node.parent[1]}"
    )
    return {
        "member": node.member,
        "generation": node.generation,
        "frames": node.frames,
        "weights from": parent,
    }


def _distribution(name: str, values: Sequence[Values]) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution  # noqa: PLC0415

    seen = [v[name] for v in values]
    low, high = min(seen), max(seen)
    log = low > 0 and high / low > LOG_RATIO
    if all(float(value).is_integer() for value in seen):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _param(distribution: BaseDistribution, value: float) -> float | int:
    return int(value) if type(distribution).__name__ == "IntDistribution" else value
