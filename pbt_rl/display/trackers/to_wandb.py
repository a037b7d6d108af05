"""`--track wandb`: Weights & Biases with a wandb run for each member and a wandb run for the population, in one group.

The wandb package reads the TensorBoard files. Each quantity is one chart with a line per member. The environment
variable WANDB_PROJECT sets the project (default: pbt_rl). WANDB_MODE=offline and wandb's other variables work as usual.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import wandb

from pbt_rl.display.scalars import value_tag
from pbt_rl.display.trackers.outlets import TrackedRun
from pbt_rl.display.view import RunView

PROJECT = "pbt_rl"


class WandbTracker:
    """Tracker that starts all wandb runs in its constructor.

    TensorBoard files are created later, because wandb ignores files that exist before its runs.
    """

    def __init__(self, run: TrackedRun) -> None:
        path = run.tracking / "id"  # a resumed run continues its wandb runs
        if not path.is_file():
            path.write_text(secrets.token_hex(6), encoding="utf-8")
        number, folder = path.read_text(encoding="utf-8").strip(), run.folder
        members = [(f"policy_{member:02d}", folder.member_events(member)) for member in range(run.members)]
        self._population = _begin(run, "population", number, folder.population_events)
        self._population.config.update(dict(run.config))
        self._members = [_begin(run, part, number, events) for part, events in members]
        self._shown = False
        url, files = self._population.url, run.tracking / "wandb"
        self.where = url or f"W&B is offline; `wandb sync {files}/offline-run-*` uploads the runs"

    def show(self, view: RunView) -> None:
        """At the first view: add the initial values of each member to the config of its wandb run."""
        if not self._shown:
            for m, run in zip(view.members, self._members, strict=True):
                start = {value_tag(name): value for name, value in m.initial.items()}
                run.config.update({"member": m.member, **start})
        self._shown = True

    def close(self, ended: str) -> None:
        """Finish all wandb runs. wandb first reads the TensorBoard files to their end."""
        for run in (self._population, *self._members):
            run.summary["ended"] = ended
            run.finish(exit_code=1 if ended == "failed" else 0)


def _begin(run: TrackedRun, part: str, number: str, events: Path) -> Any:
    begun = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        group=run.name,
        job_type=part.split("_", maxsplit=1)[0],
        name=f"{run.name}/{part}",
        id=f"{number}-{part}",
        resume="allow",
        dir=str(run.tracking),
        reinit="create_new",
        settings=wandb.Settings(silent=True, disable_git=True, disable_code=True),
    )
    # The option `sync_tensorboard` works only for known writers, and for one run per process.
    begun._tensorboard_callback(str(events), save=False, root_logdir=str(events))  # noqa: SLF001
    return begun
