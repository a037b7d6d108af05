"""A toy whose record shows every step that is lost, repeated or changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ..toy import Info, Obs, Step, Toy

# ruff: noqa: D102 - the docstring of each class describes its reset and step


class Counting(Toy):
    """Observe (row's id, episode, step, checksum of the episode's actions): see `counting_errors`.

    The id is the low 24 bits of the row's seed, which float32 holds exactly. Episodes last 5 to 17 steps;
    every third is truncated, the others terminate. The reward is the step's number.
    """

    actions = 5

    def __init__(self) -> None:
        self.observation_space = Box(0, 2**24, (4,))
        self.action_space = Discrete(self.actions)
        self._row_id = 0
        self._episode = -1
        self._steps = 0
        self._checksum = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._row_id = seed % 2**24
        self._episode += 1
        self._steps = self._checksum = 0
        return self._obs(), {}

    def step(self, action: int) -> Step:
        self._steps += 1
        self._checksum = next_checksum(self._checksum, action)
        done = self._steps == episode_length(self._episode)
        by_limit = self._episode % 3 == 2
        return self._obs(), float(self._steps), done and not by_limit, done and by_limit, {}

    def _obs(self) -> Obs:
        return np.array([self._row_id, self._episode, self._steps, self._checksum], np.float32)


def episode_length(episode: int) -> int:
    """Return the number of steps of an episode of toy/counting."""
    return 5 + episode * 7 % 13


def next_checksum(checksum: int, action: int) -> int:
    """Return the checksum of an episode's actions after one more."""
    return (31 * checksum + action + 1) % 65_521


def counting_errors(obs_TF: NDArray[Any], action_T: NDArray[Any], first_T: NDArray[Any]) -> list[str]:
    """List what is lost, repeated or wrong in the steps that one row of toy/counting delivered.

    obs_TF: [T, 4]. action_T: [T] answers to obs[t]; those before a reset do not count. first_T: [T]. A first
    observation of episode 0 may stand anywhere: its actor was started anew.
    """
    errors = []
    for t in range(len(obs_TF)):
        row_id, episode, step, checksum = (int(number) for number in obs_TF[t])
        expected: tuple[int, int, int, int] | None = None
        if t > 0:
            last_id, last_episode, last_step, last_checksum = (int(number) for number in obs_TF[t - 1])
            if first_T[t]:
                expected = (last_id, 0 if episode == 0 else last_episode + 1, 0, 0)
                if episode != 0 and last_step != episode_length(last_episode):
                    errors.append(f"at {t}: episode {last_episode} was left after step {last_step}")
            else:
                expected = (
                    last_id,
                    last_episode,
                    last_step + 1,
                    next_checksum(last_checksum, int(action_T[t - 1])),
                )
        elif first_T[t]:
            expected = (row_id, episode, 0, 0)
        got = (row_id, episode, step, checksum)
        if expected is not None and got != expected:
            errors.append(f"at {t}: expected (id, episode, step, checksum) {expected}, got {got}")
    return errors
