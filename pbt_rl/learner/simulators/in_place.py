"""Rollouts of rows that lie on the learner's device, laid out as a batch has them: a batch is made of views.

Axes: P policies, T steps, b rows of a policy, S recurrent state.
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
from pbt_rl.algos.device import Mark
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.rollout import FIELDS, RolloutShape, poisoned


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchInPlace(Batch):
    """A batch whose observations lie as it has them, of single frames."""

    stored: Mapping[str, ObsLayout]
    views: Mapping[str, Tensor]
    """Name -> [P, T or more, B, ...], as stored."""

    @property
    def layouts(self) -> Mapping[str, ObsLayout]:
        return self.stored

    def obs(self, span: slice, into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Nothing is copied if nothing asks for it."""
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
    """Make a batch of steps that lie as it has them: of views, without a copy.

    Resets happen in the step that ends an episode, so every transition is a real one: `first` zeroes the recurrent
    state and does nothing else. obs: name -> [P, T or more, B, ...], single frames. fields: name -> [P, T(+1), B, ...]
    (`state`: [P, B, S]). usable_P: bool, whether the steps count for a policy. final_value: see `Batch`.
    """
    assert all(layout.stack == 1 for layout in layouts.values()), "stacks of frames do not lie in place"
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
    """Memory of T steps, used again and again; fresh memory is poisoned.

    fields: name -> [P, T(+1), b, ...] (`state`: [P, b, S]). obs: name -> [P, T+1, b, ...]. weights_version,
    weights_epoch, ready and on_device are those of `Rollout`.
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
        """[P, T, b] see `Batch`."""
        self.weights_version: NDArray[np.int64] = np.full((of.steps, of.policies), -1, np.int64)
        self.weights_epoch: NDArray[np.int64] = np.full(of.policies, -1, np.int64)
        self.ready: Mark | None = None
        self.on_device = [*self.fields.values(), *self.obs.values(), self.final_value]

    def batch(self, usable_P: NDArray[np.bool_]) -> Batch:
        """Return the batch that lies here. usable_P: whether it counts for a policy."""
        usable = torch.from_numpy(usable_P).to(self.fields["reward"].device)
        return batch_in_place(self.layouts, self.obs, self.fields, usable, self.final_value)
