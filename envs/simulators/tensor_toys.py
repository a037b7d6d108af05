"""Gymnasium's Pendulum-v1 and CartPole-v1 as device simulators, with tunable reward terms.

Axes: P slots, R rows, K shaping terms, S numbers of a row's state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..base import EnvSpec
from .rows import SimulatorStep


class _Rows(ABC):
    """Base class of the toys. The state is a tensor [R, S] of S numbers for each row.

    limit: steps after which an episode is truncated.
    widths: S numbers. Number i of an episode's first state is uniform in -widths[i]..widths[i].
    """

    def __init__(
        self, spec: EnvSpec, rows: int, device: str, seed: int, limit: int, widths: tuple[float, ...]
    ) -> None:
        self.spec, self.rows, self.device, self.limit = spec, rows, torch.device(device), limit
        self._random = torch.Generator(device).manual_seed(seed)
        self._steps = torch.zeros(rows, dtype=torch.int32, device=device)
        self._widths_S = torch.tensor(widths, device=device)

    def attach(self, weights_PK: Tensor) -> None:
        self._weights = weights_PK

    def _weights_RK(self) -> Tensor:
        return self._weights.repeat_interleave(self.rows // len(self._weights), 0)

    def reset(self) -> Mapping[str, Tensor]:
        self._state = self._first_states()
        return {"obs": self._see()}

    def spread_phases(self, seed: int) -> bool:
        drawn = torch.randint(self.limit, (self.rows,), generator=torch.Generator().manual_seed(seed))
        self._steps.copy_(drawn)
        return True

    def _first_states(self) -> Tensor:
        """Draw the state at the start of an episode for each row, [R, S]."""
        size = (self.rows, len(self._widths_S))
        return (torch.rand(size, generator=self._random, device=self.device) * 2 - 1) * self._widths_S

    @abstractmethod
    def _see(self) -> Tensor:
        """Return the observations of the current states, float32 [R, size of the observation]."""

    def _end(self, terminated: Tensor, reward: Tensor, objective: Tensor) -> SimulatorStep:
        self._steps += 1
        truncated = (self._steps >= self.limit) & ~terminated
        ended, final = terminated | truncated, {"obs": self._see()}
        self._state = torch.where(ended[:, None], self._first_states(), self._state)
        self._steps.masked_fill_(ended, 0)
        return SimulatorStep({"obs": self._see()}, reward, terminated, truncated, final, objective)

    def close(self) -> None:  # noqa: B027 - nothing is held
        pass


class Pendulum(_Rows):
    """Pendulum with the reward terms angle, speed and effort, each minus a square.

    The objective is the return with the default weights.
    """

    def __init__(self, spec: EnvSpec, rows: int, device: str, seed: int, limit: int = 200) -> None:
        super().__init__(spec, rows, device, seed, limit, (math.pi, 1.0))
        self._usual = torch.tensor([*spec.shaping.values()], device=self.device)

    def _see(self) -> Tensor:
        angle, speed = self._state.unbind(1)
        return torch.stack((angle.cos(), angle.sin(), speed), 1)

    def step(self, action: Tensor) -> SimulatorStep:
        """Step all rows. action: torques [R, 1], from -2 to 2."""
        angle, speed = self._state.unbind(1)
        torque = action[:, 0]
        from_top = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        terms_RK = -torch.stack((from_top.square(), speed.square(), torque.square()), 1)
        speed = (speed + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self._state = torch.stack((angle + speed * 0.05, speed), 1)
        none = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        return self._end(none, (terms_RK * self._weights_RK()).sum(1), terms_RK @ self._usual)


class CartPole(_Rows):
    """CartPole with two reward terms. The objective is the number of steps.

    alive: 1 per step. centre: minus the distance of the cart from the centre.
    """

    def __init__(self, spec: EnvSpec, rows: int, device: str, seed: int, limit: int = 500) -> None:
        super().__init__(spec, rows, device, seed, limit, (0.05,) * 4)

    def _see(self) -> Tensor:
        return self._state

    def step(self, action: Tensor) -> SimulatorStep:
        """Step all rows. action: [R, 1], 0 pushes the cart to the left, 1 to the right."""
        x, speed, angle, turn = self._state.unbind(1)
        force = action[:, 0].float() * 20 - 10
        push = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        turning = (9.8 * angle.sin() - angle.cos() * push) / (
            0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1)
        )
        moving = push - 0.05 * turning * angle.cos() / 1.1
        self._state = torch.stack((x, speed, angle, turn), 1) + 0.02 * torch.stack(
            (speed, moving, turn, turning), 1
        )
        out = (self._state[:, 0].abs() > 2.4) | (self._state[:, 2].abs() > 12 * math.pi / 180)
        alive = torch.ones_like(x)
        terms_RK = torch.stack((alive, -self._state[:, 0].abs()), 1)
        return self._end(out, (terms_RK * self._weights_RK()).sum(1), alive)
