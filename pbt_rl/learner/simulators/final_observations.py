"""Values of the final observations of truncated episodes, for simulators.

A simulator resets a row in the step that ends its episode. It may return the episode's final observation separately.

Axes: P slots, b rows of a policy, R = P * b, T steps, S recurrent state.

For each row, the final observation at the last time limit in a rollout is stored. One forward pass at the end of the
rollout computes the values of these observations. If the environment returns final observations, the pass runs on a GPU
even if no row reached a time limit, because a check would need a synchronisation.

If a row reaches several time limits in a rollout, only the last limit uses the stored observation. Each earlier limit
uses the value of the last observation before this limit. If an environment returns no final observations, all limits
use the value of the last observation before the limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import RolloutShape
from pbt_rl.learner.simulators.rounds import nowhere


class FinalObservations:
    """Storage of the final observation at the last time limit of each row in a rollout."""

    def __init__(self, of: RolloutShape) -> None:
        self._layouts, self._shape, self._device = of.layouts, (of.policies, of.envs), of.device
        self.obs: dict[str, Tensor] = {}
        """Final observations, name -> [R, ...] as the simulator returns them. Rows that reached no time limit
        in this rollout contain zeros. The dict is empty until a step returns final observations."""
        self._state = torch.zeros((*self._shape, of.state_size), device=of.device)
        self._at = torch.full(self._shape, -1, dtype=torch.int64, device=of.device)
        """[P, b], last step in this rollout at which the row reached a time limit, or -1 if there was no such step."""

    def note(
        self, t: int | Tensor, truncated: Tensor, obs: Mapping[str, Tensor] | None, state: Tensor
    ) -> None:
        """Store the final observations of a step.

        t: number of the step in the rollout: an integer, or a tensor [1] on the device.
        truncated: [R], True on rows that reached a time limit.
        obs: final observations, name -> [R, ...]. None: the simulator returns no final observations.
        state: [P, b, S], recurrent state after acting.
        """
        if obs is None or (self.obs and nowhere(truncated)):
            return
        if not self.obs:
            self.obs = {name: torch.zeros_like(obs[name]) for name in self._layouts}
        for name, kept in self.obs.items():
            here = truncated.view(-1, *(1,) * (kept.dim() - 1))
            torch.where(here, obs[name], kept, out=kept)
        limits = truncated.view(self._shape)
        if self._state.numel():
            torch.where(limits[..., None], state, self._state, out=self._state)
        self._at.copy_(torch.where(limits, t, self._at))

    def values(self, value_PTB: Tensor, pack: Pack) -> Tensor:
        """Return the bootstrap values [P, T, b]. Reset the storage. Only the values at time limits are used.

        value_PTB: [P, T, b], value of the observation before each step.
        """
        if not self.obs or nowhere(self._at >= 0):
            return value_PTB
        seen = {
            name: self._layouts[name].as_seen(x.unflatten(0, self._shape)) for name, x in self.obs.items()
        }
        begins = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        final_PB = pack.act(seen, self._state, begins)[1]
        steps = torch.arange(value_PTB.shape[1], device=self._device)[None, :, None]
        values = torch.where(steps == self._at[:, None], final_PB[:, None], value_PTB)
        self._at.fill_(-1)
        for kept in self.obs.values():
            kept.zero_()
        return values
