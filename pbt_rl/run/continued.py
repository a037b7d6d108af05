"""Saved state of a run that is resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbt_rl.controllers.hypers import SHAPING, Values, with_shaping
from pbt_rl.display.terminal import age
from pbt_rl.errors import ConfigError
from pbt_rl.learner.continuation import vector_env_rows
from pbt_rl.plan import Plan
from pbt_rl.record.checkpoints import Checkpoint

Changed = dict[str, tuple[Any, Any]]
"""Option -> (old value, new value)."""


@dataclass(frozen=True)
class Continued:
    """Checkpoint of a run that is resumed, with the supervisor's state and the changed options."""

    checkpoint: Checkpoint
    state: dict[str, Any]
    """Content of the checkpoint's state.json."""
    changed: Changed
    shaping: tuple[str, ...] = ()
    """NAME=VALUE entries of reward weights that the user gives for this resume."""

    @property
    def record(self) -> dict[str, Any]:
        """State of journal and displays at the checkpoint, from `Recorder.positions`."""
        record: dict[str, Any] = self.state["record"]
        return record

    @property
    def value_names(self) -> frozenset[str]:
        """Names of the members' values. Raises ConfigError if the state is incomplete."""
        try:
            return frozenset(self.state["run"]["population"]["members"][0]["values"])
        except (LookupError, TypeError):
            raise ConfigError(
                f"{self.checkpoint.path} cannot be resumed: its state.json has no values of members"
            ) from None

    def given(self, shaping: Mapping[str, float]) -> Values:
        """Return the reward weights that the resume sets in each member: `shaping.NAME` -> new weight.

        These are the weights that the user gives for this resume, and those that differ because --shaping was changed.
        shaping: default weights of the environment.
        """
        before, now = (with_shaping(shaping, entries) for entries in self.changed.get("shaping", ((), ())))
        weights = {name: value for name, value in now.items() if value != before[name]}
        unset = dict.fromkeys(shaping, math.nan)
        weights |= {name: v for name, v in with_shaping(unset, self.shaping).items() if not math.isnan(v)}
        return {SHAPING + name: value for name, value in weights.items()}

    @property
    def resumes(self) -> int:
        """Number of resumes of the run, including the present resume."""
        return int(self.state["resumes"]) + 1

    def vector_envs(self, plan: Plan) -> Sequence[Any]:
        """Return the saved states of the vector envs, in one list per actor.

        Empty if no states were saved, or if the plan has other vector envs.
        """
        saved: list[list[Any]] = self.state["units"]
        rows = [
            vector_env_rows(vector_env)
            for learner in self.state["learners"]
            for vector_env in learner.get("units", ())
        ]
        same = rows == [pack.rows for pack in plan.packs for _ in range(pack.vector_envs)] and [
            len(vector_envs) for vector_envs in saved
        ] == [pack.vector_envs_per_actor for pack in plan.packs for _ in range(pack.actors)]
        return saved if same else ()

    def found(self) -> str:
        """Describe the checkpoint in a line for the user."""
        members, seconds = self.checkpoint.members(), time.time() - self.checkpoint.manifest.time
        generations = [m.generation for m in members]
        return (
            f"resuming {self.checkpoint.path}: {len(members)} members with at least {self.checkpoint.frames:,} frames, "
            f"generations {min(generations)} to {max(generations)}, saved {age(seconds)} ago"
        )
