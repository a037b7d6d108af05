"""The trackers that `--track` names. A new one is one file and one entry here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from pbt_rl.errors import ConfigError
from pbt_rl.extras import load_object
from pbt_rl.trackers.base import TrackedRun, Tracker


@dataclass(frozen=True)
class Entry:
    """place: module:Class. package: that it needs; an extra of this project has the same name."""

    place: str
    package: str = ""


TRACKERS = {
    "csv": Entry("pbt_rl.trackers.to_csv:CsvTracker"),
    "wandb": Entry("pbt_rl.trackers.to_wandb:WandbTracker", "wandb"),
    "mlflow": Entry("pbt_rl.trackers.to_mlflow:MlflowTracker", "mlflow"),
}


def check_installed(name: str) -> None:
    """Check that the package of a tracker is there. Raises ConfigError."""
    package = TRACKERS[name].package if name in TRACKERS else ""
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(f'--track {name} needs {package}: pip install "pbt-rl[{package}]"')


def load(name: str) -> Callable[[TrackedRun], Tracker]:
    """Import a tracker: a registered one, or `module:Class` from the import path. Raises ConfigError."""
    try:
        found = load_object(TRACKERS[name].place if name in TRACKERS else name, "Class")
    except ValueError as error:
        raise ConfigError(f"--track {name} {error}") from error
    missing = [method for method in ("show", "close") if not callable(getattr(found, method, None))]
    if missing or not callable(found):
        raise ConfigError(f"--track {name} is no tracker: a class with show(view) and close(ended) is needed")
    tracker: Callable[[TrackedRun], Tracker] = found
    return tracker
