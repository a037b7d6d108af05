"""APPO that checks each step of `toy/counting` that it learns from: `--algo storm_counting:EXACT`.

A lost, repeated or wrong step raises an error. The error ends the learner and the run.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.algorithm import Hypers, UpdateSettings
from pbt_rl.algos.appo import APPO, gae_of_batch
from pbt_rl.algos.batch import Samples
from pbt_rl.envs.toy import counting_errors

INEXACT = "steps of toy/counting are not exact"


class CheckedAdvantage:
    """Advantages of APPO, computed after a check of the batch. The last learned step of each row is stored."""

    def __init__(self) -> None:
        self._reached: dict[int, tuple[int, int]] = {}
        """Row id -> (episode, number of the step in this episode) of the last learned step."""

    def __call__(self, s: Samples, hypers: Hypers, settings: UpdateSettings) -> Tensor | None:
        """Check the steps and compute advantages (see `Algorithm.fixed_advantage`). Raises AssertionError."""
        obs_GTBF = next(iter(s.obs.values())).numpy()
        action_GTB = s.action.reshape(s.first.shape).numpy()
        first_GTB = s.first.numpy()
        if not obs_GTBF.any():  # example samples, with which a run tries the algorithm before training
            return gae_of_batch(s, hypers, settings)
        for g in range(len(obs_GTBF)):
            for b in range(obs_GTBF.shape[2]):
                errors = self.errors(obs_GTBF[g, :, b], action_GTB[g, :, b], first_GTB[g, :, b])
                assert not errors, f"{INEXACT}: {errors}"
        return gae_of_batch(s, hypers, settings)

    def errors(
        self, obs_TF: NDArray[np.float32], action_T: NDArray[np.int64], first_T: NDArray[np.bool_]
    ) -> list[str]:
        """Return errors in the next steps of a row. (A restarted actor has rows with new ids, from episode 0.)"""
        begun = [t for t in range(1, len(obs_TF)) if first_T[t] and obs_TF[t, 1] == 0]
        errors = []
        for begin, end in zip([0, *begun], [*begun, len(obs_TF)], strict=True):
            part = slice(begin, end)
            errors += counting_errors(obs_TF[part], action_T[part], first_T[part])
            row, episode, step = (int(number) for number in obs_TF[begin, :3])
            reached = self._reached.get(row)
            if reached is not None and (episode, step) <= reached:
                errors.append(f"row {row}: episode {episode}, step {step} comes after {reached}")
            self._reached[row] = (int(obs_TF[end - 1, 1]), int(obs_TF[end - 1, 2]))
        return errors


EXACT = dataclasses.replace(APPO, fixed_advantage=CheckedAdvantage())
