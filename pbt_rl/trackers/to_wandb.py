"""`--track wandb`: Weights & Biases, one run per member and one for the population, all in one group.

So each quantity is one chart with a line per member, as in TensorBoard. The project is WANDB_PROJECT (default: pbt_rl);
WANDB_MODE=offline and the package's other variables work as ever. Everything is plotted over frames.
"""

from __future__ import annotations

import os
from typing import Any

import wandb

from pbt_rl.display.scalars import member_scalars, value_tag
from pbt_rl.display.view import MemberView, RunView
from pbt_rl.trackers.base import TrackedRun, run_id, tracked_scalars

PROJECT = "pbt_rl"
FRAMES = "frames"


class WandbTracker:
    """Logs every view. The runs begin with the first one, which has the members' start values."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._id = run, run_id(run)
        self._population: Any = None
        self._members: list[Any] = []
        run.folder.mkdir(exist_ok=True)

    def show(self, view: RunView) -> None:
        """Log the population and every member."""
        if self._population is None:
            self._population = self._begin_run("population", dict(self._run.config))
            self._members = [self._begin_run(f"policy_{m.member:02d}", _start(m)) for m in view.members]
        self._population.log({FRAMES: view.frames, "seconds": view.seconds, **tracked_scalars(view)})
        for member, shown in zip(view.members, self._members, strict=True):
            shown.log({FRAMES: member.frames, "seconds": view.seconds, **member_scalars(member)})

    def close(self, ended: str) -> None:
        """Finish all runs."""
        for shown in (self._population, *self._members):
            if shown is not None:
                shown.summary["ended"] = ended
                shown.finish(exit_code=1 if ended == "failed" else 0)

    def _begin_run(self, part: str, config: dict[str, Any]) -> Any:
        begun = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=self._run.name,
            job_type=part.split("_", maxsplit=1)[0],
            name=f"{self._run.name}/{part}",
            id=f"{self._id}-{part}",
            resume="allow",
            dir=str(self._run.folder),
            config=config,
            reinit="create_new",
            settings=wandb.Settings(silent=True, disable_git=True, disable_code=True),
        )
        begun.define_metric(FRAMES)
        begun.define_metric("*", step_metric=FRAMES)
        return begun


def _start(member: MemberView) -> dict[str, Any]:
    """Return the values that a member began with, as the config of its run."""
    return {"member": member.member, **{value_tag(name): value for name, value in member.initial.items()}}
