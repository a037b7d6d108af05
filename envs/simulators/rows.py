"""Device simulators: environments whose rows are tensors, and which the learner steps on its device.

This module imports torch. Families import this module when they make an environment.

Axes: P slots, b rows of a slot, R = P * b rows (row r belongs to slot r // b), K shaping terms, A action components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.errors import EnvSetupError

from ..base import EnvSpec, ShapingSource, StepArrays, copied
from ..conventions import ConventionWarnings


@dataclass(frozen=True)
class SimulatorStep:
    """Result of a step. The tensors belong to the environment and are valid until its next step.

    A row is reset in the step that ends its episode.
    """

    obs: Mapping[str, Tensor]
    """name -> [R, ...]. Rows whose episode ended contain the first observation of the new episode."""
    reward: Tensor
    """[R] float32, computed with the shaping weights of the row's slot."""
    terminated: Tensor
    """[R] bool: the episode ended in a terminal state."""
    truncated: Tensor
    """[R] bool: the episode was cut off in a state that is not terminal."""
    final_obs: Mapping[str, Tensor] | None = None
    """name -> [R, ...]. Rows whose episode ended contain the final observation of the old episode. Other rows are never
    read. The learner reads only truncated rows. If None, the learner bootstraps truncated rows from the value of the
    observation before the step.
    """
    objective: Tensor | None = None
    """[R] float32. The objective of an episode is the sum over its steps, and must not depend on the shaping weights.
    If None, the objective is the sum of the rewards.
    """
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    """name -> [R] float32, extra statistics. Read only in rows whose episode ended."""


class SimulatorEnv(Protocol):
    """Protocol of R rows on one device. Methods must not synchronise with the device (`.item()`, `nonzero` ...).

    An optional method `spread_phases(seed) -> bool` makes the rows' first episodes end at different times. The learner
    calls the method once, after `reset`, unless --random-phases is off. `spread_phases` shortens each row's first
    episode by a random number of steps, and returns False if episodes cannot be shortened. The shortened episodes do
    not count toward the objective.
    """

    spec: EnvSpec
    rows: int
    device: torch.device

    def attach(self, weights_PK: Tensor) -> None:
        """Receive the shaping weights: float32 [P, K], columns in the order of `spec.shaping`.

        P: policies (slots). K: shaping terms.

        Called once, before `reset`. The learner changes the tensor in place between steps. Read the tensor in every
        step: `weights_PK.repeat_interleave(rows // P, 0)`.
        """

    def reset(self) -> Mapping[str, Tensor]:
        """Reset every row and return the observations, name -> [R, ...]. This method is called once."""

    def step(self, action: Tensor) -> SimulatorStep:
        """Step every row. action: [R, A] of `spec.action.dtype`, within the bounds."""

    def close(self) -> None:
        """Release the environment. Safe to call twice."""


MakeSimulator = Callable[[str, int, int, "torch.device", Any], SimulatorEnv]
"""(id, rows, seed, device, `EnvOptions`) -> environment."""


class Checks:
    """Checks of an environment's tensors, without synchronisation with the device.

    Wrong types, shapes and devices raise EnvSetupError. Wrong values (see KINDS) are recorded in the tensor `wrong`,
    which the learner reads at its next synchronisation.

    policies: number P of slots.
    """

    KINDS = (
        "an observation is not finite",
        "a reward or an objective is not finite",
        "terminated and truncated are both set",
    )

    def __init__(self, env: SimulatorEnv, policies: int) -> None:
        self._id, self._spec, self._policies = env.spec.env_id, env.spec, policies
        self._rows, self._device = env.rows, env.device
        self._first: tuple[frozenset[str], bool] | None = None
        """(names of the statistics, True if there is an objective) of the first step. None before this step."""
        self.wrong = torch.zeros(policies, len(self.KINDS), dtype=torch.bool, device=env.device)
        """[P, len(KINDS)] True if a wrong value of the kind has occurred in a row of the slot."""

    def obs(self, obs: object, what: str = "obs") -> None:
        """Raise EnvSetupError for wrong names, types, shapes or devices of observations.

        what: name of the observations for the error.
        """
        if not isinstance(obs, Mapping) or set(obs) != set(self._spec.obs):
            given = f"the names {sorted(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
            self._fail(f"{what} is {given}, not a dict of tensors with the names {sorted(self._spec.obs)}")
        for name, array in self._spec.obs.items():
            self._tensor(obs[name], f'{what}["{name}"]', array.dtype, array.shape)

    def step(self, step: object) -> None:
        """Raise EnvSetupError for wrong types, shapes or devices of a step's tensors.

        Also raises EnvSetupError if a statistic of the first step is missing, or if only some steps have an objective.
        """
        if not isinstance(step, SimulatorStep):
            self._fail(f"step returned {type(step).__name__}. Return a pbt_rl.envs.simulators.SimulatorStep")
        self.obs(step.obs)
        self._tensor(step.reward, "reward", "float32", ())
        self._tensor(step.terminated, "terminated", "bool", ())
        self._tensor(step.truncated, "truncated", "bool", ())
        if step.final_obs is not None:
            self.obs(step.final_obs, "final_obs")
        if step.objective is not None:
            self._tensor(step.objective, "objective", "float32", ())
        for name, values in step.stats.items():
            self._tensor(values, f'stats["{name}"]', "float32", ())
        if self._first is None:
            self._first = frozenset(step.stats), step.objective is not None
        stats, has_objective = self._first
        if missing := sorted(stats - step.stats.keys()):
            self._fail(
                f"a step lacks the stats {', '.join(missing)}. Return them in each step, because the first had them"
            )
        if has_objective != (step.objective is not None):
            self._fail("some steps have an objective, and others have none. Return it in each step, or never")

    def values(self, obs: Mapping[str, Tensor]) -> None:
        """Record observations that are not finite. One call per rollout is enough, because NaN mostly persists."""
        for values in obs.values():
            if values.is_floating_point():
                self._note(0, ~torch.isfinite(values))

    def rewards(self, rewards: Tensor) -> None:
        """Record rewards that are not finite. rewards: [R], or another shape whose first axis is ordered by slot."""
        self._note(1, ~torch.isfinite(rewards))

    def ends(self, terminated: Tensor, truncated: Tensor) -> None:
        """Record transitions that are both terminated and truncated.

        terminated, truncated: bool [R], or another shape whose first axis is ordered by slot.
        """
        self._note(2, terminated & truncated)

    def _note(self, kind: int, wrong: Tensor) -> None:
        self.wrong[:, kind] |= wrong.reshape(self._policies, -1).any(1)

    def _tensor(self, x: object, what: str, dtype: str, shape: tuple[int, ...]) -> None:
        if not isinstance(x, Tensor):
            self._fail(f"{what} is {type(x).__name__}, not a tensor")
        if x.device != self._device:
            self._fail(
                f"{what} is on {x.device}, not on {self._device}. Create it on {self._device}, without .cpu() or .to()"
            )
        if x.dtype != getattr(torch, dtype):
            self._fail(
                f"{what} is {str(x.dtype).removeprefix('torch.')}, not {dtype}. Return x.to(torch.{dtype})"
            )
        if x.shape != (self._rows, *shape):
            self._fail(
                f"{what} has shape {[*x.shape]}, not {[self._rows, *shape]}. Return one entry for each row"
            )
        if x.requires_grad:
            self._fail(f"{what} has a gradient. Step under torch.no_grad(), or return x.detach()")

    def _fail(self, text: str) -> NoReturn:
        raise EnvSetupError(f"{self._id}: {text}")


def check_made(env: object, env_id: str, rows: int) -> None:
    """Raise EnvSetupError if a factory's return value is not a `SimulatorEnv` of this number of rows."""
    needed = ("spec", "rows", "device", "attach", "reset", "step", "close")
    if missing := [name for name in needed if not hasattr(env, name)]:
        raise EnvSetupError(
            f"{env_id} returned {type(env).__name__} without {', '.join(missing)}. A factory with the parameters rows "
            "and device must return a pbt_rl.envs.simulators.SimulatorEnv"
        )
    theirs = int(getattr(env, "rows"))  # noqa: B009 - the attributes of an unknown object
    if theirs != rows:
        raise EnvSetupError(f"{env_id} returned an environment of {theirs} rows. Return {rows} rows")


class SimulatorVectorEnv:
    """Rows of a device simulator as a `VectorEnv`, for evaluations, checks and films.

    The simulator resets a row in the step that ends its episode, but a `VectorEnv` resets the row in the next step. The
    simulator uses the action of that next step as the first action of the new episode. Therefore the new episode of the
    `VectorEnv` lacks its first step. The first episode of each row is complete. If the simulator returns no
    `final_obs`, the last step of an episode delivers the first observation of the new episode.
    """

    def __init__(self, env: SimulatorEnv, shaping: ShapingSource) -> None:
        self.spec, self.rows, self._env, self._shaping = env.spec, env.rows, env, shaping
        self._weights = torch.zeros(env.rows, max(1, len(env.spec.shaping)), device=env.device)
        self._weights = self._weights[:, : len(env.spec.shaping)]
        self._checks = Checks(env, env.rows)
        self._warnings = ConventionWarnings(shaping, env.spec)
        self._versions = np.zeros(env.rows, np.int64)
        self._sums = np.zeros((env.rows, 3))
        """[R, 3] objective, reward, steps of the current episode."""
        self._ended = np.zeros(env.rows, np.bool_)

    def reset(self, out: StepArrays) -> None:
        for row in range(self.rows):
            self._begin_episode(row)
        self._env.attach(self._weights)
        obs = self._env.reset()
        self._checks.obs(obs)
        _clear(out)
        out.first[:] = True
        self._write_obs(obs, out)

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        with torch.no_grad():
            step = self._env.step(torch.from_numpy(np.ascontiguousarray(action)).to(self._env.device))
        self._checks.step(step)
        first = self._ended
        _clear(out)
        out.first[:] = first
        reward, terminated, truncated = (
            x.cpu().numpy() for x in (step.reward, step.terminated, step.truncated)
        )
        objective = reward if step.objective is None else step.objective.cpu().numpy()
        self._sums += np.stack((objective, reward, np.ones(self.rows)), 1)
        compares = self._warnings.compares_finals and step.final_obs is not None and bool(truncated.any())
        before = copied(out.obs) if compares else {}
        self._write_obs(step.obs, out)
        after = copied(out.obs) if compares else {}
        # An episode of a single step is ignored, because its only step counts as the reset.
        ended = (terminated | truncated) & ~first
        if step.final_obs is not None and ended.any():
            for name, array in out.obs.items():
                array[ended] = step.final_obs[name].cpu().numpy()[ended]
        out.reward[:] = np.where(first, 0, reward)
        out.terminated[:], out.truncated[:] = terminated & ended, truncated & ended
        out.episode_done[:] = ended
        if compares:
            self._warnings.of_finals(out.truncated, before, out.obs, after)
        rows = np.flatnonzero(ended)
        out.objective[rows], out.raw_return[rows] = self._sums[rows, 0], self._sums[rows, 0]
        out.shaped_return[rows], out.length[rows] = self._sums[rows, 1], self._sums[rows, 2]
        out.shaping_version[rows] = self._versions[rows]
        stats = {name: x.cpu().numpy() for name, x in step.stats.items()} if len(rows) else {}
        for row in rows.tolist():
            of_row = {name: float(values[row]) for name, values in stats.items()}
            self._warnings.of_stats(out, row, of_row or None)
        for row in np.flatnonzero(terminated | truncated).tolist():
            self._sums[row] = 0
            self._begin_episode(row)
        self._ended = ended

    def _begin_episode(self, row: int) -> None:
        version, values = self._shaping(row)
        self._versions[row] = version
        if self.spec.shaping:
            self._weights[row] = torch.tensor([float(values[name]) for name in self.spec.shaping])

    @staticmethod
    def _write_obs(obs: Mapping[str, Tensor], out: StepArrays) -> None:
        for name, array in out.obs.items():
            array[:] = obs[name].cpu().numpy()

    def close(self) -> None:
        self._env.close()


def _clear(out: StepArrays) -> None:
    """Set rewards and flags to 0."""
    for array in (out.reward, out.terminated, out.truncated, out.first, out.episode_done):
        array[:] = 0
