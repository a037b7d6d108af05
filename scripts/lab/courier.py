"""Toy environment with a sparse objective and helpful reward terms, as a device simulator.

    PYTHONPATH=scripts/lab pbt-rl train --env courier:make_env --mode serial --rows 64

The agent pushes a point of unit mass through a square. If the point rests at the goal, a delivery is counted, and the
goal moves. The objective is the number of deliveries in an episode. Other reward terms:

    near      closeness to the goal. With weight 0, exploration hardly finds deliveries. With a large weight, the point
              waits near its goal, because a delivery would move the goal away.
    slow      negative squared speed. Deliveries need a low speed, and travel needs a high speed.
    effort    negative squared push

Axes: R rows, K terms.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.envs.simulators import SimulatorStep

STEP_SECONDS, PUSH, MOST_SPEED = 0.1, 2.0, 1.5
REACH, REST = 0.1, 0.3
"""Maximum distance from the goal, and maximum speed, at which a delivery is counted."""


class Courier:
    """R rows of the environment (see `SimulatorEnv`)."""

    def __init__(self, rows: int, device: str, seed: int, limit: int) -> None:
        self.spec = EnvSpec(
            "courier",
            {"obs": ArraySpec((6,), "float32")},
            ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0)),
            shaping={"delivery": 1.0, "near": 0.1, "slow": 0.1, "effort": 0.1},
        )
        self.rows, self.device, self.limit = rows, torch.device(device), limit
        self._random = torch.Generator(device).manual_seed(seed)
        self._steps = torch.zeros(rows, dtype=torch.int32, device=device)

    def attach(self, weights_PK: Tensor) -> None:
        """See `SimulatorEnv`."""
        self._weights = weights_PK

    def reset(self) -> Mapping[str, Tensor]:
        """Reset all rows."""
        self._at, self._speed, self._goal = self._place(), torch.zeros_like(self._place()), self._place()
        return {"obs": self._see()}

    def step(self, action: Tensor) -> SimulatorStep:
        """Push each point for STEP_SECONDS."""
        push = action.clamp(-1, 1)
        self._speed = (self._speed + PUSH * STEP_SECONDS * push).clamp(-MOST_SPEED, MOST_SPEED)
        moved = self._at + STEP_SECONDS * self._speed
        self._at = moved.clamp(-1, 1)
        self._speed = torch.where(moved == self._at, self._speed, 0.0)  # a wall stops it
        distance, speed = (self._goal - self._at).norm(dim=1), self._speed.norm(dim=1)
        delivered = (distance < REACH) & (speed < REST)
        terms = (delivered.float(), torch.exp(-distance / 0.3), -speed.square(), -push.square().sum(1))
        weights_RK = self._weights.repeat_interleave(self.rows // len(self._weights), 0)
        reward = (torch.stack(terms, 1) * weights_RK).sum(1)
        self._goal = torch.where(delivered[:, None], self._place(), self._goal)
        self._steps += 1
        ended, final = self._steps >= self.limit, {"obs": self._see()}
        self._at, self._goal = (torch.where(ended[:, None], self._place(), x) for x in (self._at, self._goal))
        self._speed = torch.where(ended[:, None], 0.0, self._speed)
        self._steps.masked_fill_(ended, 0)
        never = torch.zeros_like(ended)
        return SimulatorStep({"obs": self._see()}, reward, never, ended, final, terms[0])

    def _place(self) -> Tensor:
        return torch.rand((self.rows, 2), generator=self._random, device=self.device) * 2 - 1

    def _see(self) -> Tensor:
        return torch.cat((self._at, self._speed, self._goal - self._at), 1)

    def close(self) -> None:
        """See `SimulatorEnv`."""


def make_env(rows: int, device: str, seed: int = 0, limit: int = 200) -> Courier:
    """Create the environment with R rows. limit: steps per episode."""
    return Courier(rows, device, seed, limit)
