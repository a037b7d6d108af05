"""Rollouts of device simulators, in the memory layout of a batch.

Axes: P policies, G policies of one group, T steps, B = b rows of a policy, S recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.batch import Batch
from pbt_rl.algos.kernels import Mark
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.rollout import FIELDS, RolloutShape, poisoned


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchInPlace(Batch):
    """Batch whose observations are views of a rollout. Frame stacking is not supported."""

    stored: Mapping[str, ObsLayout]
    """Storage layouts of the observations."""
    views: Mapping[str, Tensor]
    """Stored observations, name -> [P, T or more, B, ...]."""

    @property
    def layouts(self) -> Mapping[str, ObsLayout]:
        return self.stored

    def obs(self, span: slice, into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the observations of these slots, name -> [G, T, B, ...], as views of the rollout.

        into: if given, copy the observations to these tensors, and return `into`. Missing tensors are allocated.
        """
        views = {name: x[span, : self.valid.shape[1]] for name, x in self.views.items()}
        if into is None:
            return views
        for name, view in views.items():
            if name not in into:
                into[name] = torch.empty_like(view, memory_format=torch.contiguous_format)
            into[name].copy_(view)
        return into


def batch_in_place(
    layouts: Mapping[str, ObsLayout],
    obs: Mapping[str, Tensor],
    fields: Mapping[str, Tensor],
    usable_P: Tensor,
    final_value: Tensor,
) -> BatchInPlace:
    """Create a batch of views, without a copy.

    The simulator resets a row in the step that ends its episode. Therefore every transition of a usable policy is
    valid, and episode starts (`first`) only zero the recurrent state.

    obs: observations, name -> [P, T or more, B, ...], single frames.
    fields: other rollout fields, name -> [P, T or T+1, B, ...] (`state`: [P, B, S]).
    usable_P: bool, True if the policy learns from the batch.
    final_value: [P, T, B], bootstrap values at time limits.
    """
    assert all(layout.stack == 1 for layout in layouts.values()), "frame stacks are not supported in place"
    valid = usable_P[:, None, None].expand(fields["reward"].shape).contiguous()
    own: dict[str, Any] = {name: fields[name] for name in FIELDS}
    return BatchInPlace(
        rollouts=(),
        envs=valid.shape[2],
        valid=valid,
        final_value=final_value,
        stored=layouts,
        views=obs,
        **own,
    )


class InPlaceRollout:
    """Reusable buffer for a rollout of T steps. New buffers contain poison, such as NaN.

    fields: rollout fields except observations, name -> [P, T or T+1, b, ...] (`state`: [P, b, S]).
    obs: observations, name -> [P, T+1, b, ...].
    weights_version, lineage_version, ready, on_device: as in `Rollout`.
    """

    def __init__(self, of: RolloutShape) -> None:
        self.layouts, self.steps = of.layouts, of.steps
        self.fields: dict[str, Tensor] = {}
        for name, spec in FIELDS.items():
            shape, dtype = of.array(spec, of.envs)
            self.fields[name] = poisoned((of.policies, *shape), dtype, of.device)
        self.obs = {
            name: poisoned((of.policies, of.steps + 1, of.envs, *layout.kept[1]), layout.kept[0], of.device)
            for name, layout in of.layouts.items()
        }
        self.final_value = poisoned((of.policies, of.steps, of.envs), torch.float32, of.device)
        """[P, T, b], bootstrap values at time limits."""
        self.weights_version: NDArray[np.int64] = np.full((of.steps, of.policies), -1, np.int64)
        self.lineage_version: NDArray[np.int64] = np.full(of.policies, -1, np.int64)
        self.ready: Mark | None = None
        self.on_device = [*self.fields.values(), *self.obs.values(), self.final_value]

    def batch(self, usable_P: NDArray[np.bool_]) -> Batch:
        """Return this rollout as a batch, without a copy. usable_P: True if the policy learns from the batch."""
        usable = torch.from_numpy(usable_P).to(self.fields["reward"].device)
        return batch_in_place(self.layouts, self.obs, self.fields, usable, self.final_value)
