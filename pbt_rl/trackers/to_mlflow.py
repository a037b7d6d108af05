"""`--track mlflow`: MLflow, a run for the population and one nested in it per member.

MLFLOW_TRACKING_URI says where (default: MLflow's own, in the working directory, which `mlflow ui` shows) and
MLFLOW_EXPERIMENT_NAME in which experiment (default: pbt_rl). The step of every metric is the frames.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from pbt_rl.display.scalars import member_scalars, value_tag
from pbt_rl.display.view import RunView
from pbt_rl.trackers.base import TrackedRun, run_id, tracked_scalars

EXPERIMENT = "pbt_rl"
BATCH = 1000
"""Metrics that a server takes at once; 100 for parameters."""
MOST_PARAMETERS, MOST_CHARACTERS = 100, 500
ID_TAG = "pbt_rl.id"
_REFUSED = re.compile(r"[^\w\-. /]")


class MlflowTracker:
    """Logs every view. A run that goes on is found again by a tag."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._id = run, run_id(run)
        self._client: Any = MlflowClient()
        self._experiment = self._experiment_id(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT))
        self._population = self._begin_run("population", _flat(run.config), {})
        self._members: list[str] = []

    def show(self, view: RunView) -> None:
        """Log the population and every member."""
        if not self._members:
            parent = {"mlflow.parentRunId": self._population}
            for m in view.members:
                start = {value_tag(name): value for name, value in m.initial.items()}
                self._members.append(self._begin_run(f"policy_{m.member:02d}", start, parent))
        self._log(self._population, tracked_scalars(view), view.frames)
        for member, shown in zip(view.members, self._members, strict=True):
            self._log(shown, member_scalars(member), member.frames)

    def close(self, ended: str) -> None:
        """Finish all runs."""
        status = "FAILED" if ended == "failed" else "FINISHED"
        for shown in (*self._members, self._population):
            self._client.set_tag(shown, "ended", ended)
            self._client.set_terminated(shown, status)

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        known: str = self._client.create_experiment(name) if found is None else found.experiment_id
        return known

    def _begin_run(self, part: str, parameters: Mapping[str, object], tags: Mapping[str, str]) -> str:
        mine = f"{self._id}-{part}"
        before = self._client.search_runs([self._experiment], f"tags.`{ID_TAG}` = '{mine}'", max_results=1)
        if before:
            known: str = before[0].info.run_id
            self._client.set_terminated(known, "RUNNING")
            return known
        begun = self._client.create_run(
            self._experiment, run_name=f"{self._run.name}/{part}", tags={**tags, ID_TAG: mine}
        )
        shown = [Param(_name(k), str(v)[:MOST_CHARACTERS]) for k, v in parameters.items()]
        for first in range(0, len(shown), MOST_PARAMETERS):
            self._client.log_batch(begun.info.run_id, params=shown[first : first + MOST_PARAMETERS])
        self._client.log_batch(begun.info.run_id, tags=[RunTag("pbt_rl.folder", str(self._run.path))])
        made: str = begun.info.run_id
        return made

    def _log(self, shown: str, scalars: Mapping[str, float], frames: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_name(k), float(v), now, frames) for k, v in scalars.items() if math.isfinite(v)]
        for first in range(0, len(metrics), BATCH):
            self._client.log_batch(shown, metrics=metrics[first : first + BATCH])


def _name(text: str) -> str:
    """Return a name that MLflow takes."""
    return _REFUSED.sub("_", text)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Return dotted name -> value of nested options."""
    flat: dict[str, object] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
