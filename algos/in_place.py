"""Rollouts of rows that lie on the learner's device, laid out as a batch has them: a batch is made of views.

Axes: P policies, T steps, b rows of a policy, S recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Batch, batch_in_place
from .fields import FIELDS, poison, poisoned
from .observations import ObsLayout
from .streams import Mark


class InPlaceRollout:
    """Memory of T steps, used again and again; fresh memory is poisoned.

    fields: name -> [P, T(+1), b, ...] (`state`: [P, b, S]). obs: name -> [P, T+1, b, ...]. updates, weights_epoch and
    ready are those of `Rollout`.
    """

    def __init__(
        self,
        layouts: Mapping[str, ObsLayout],
        steps: int,
        policies: int,
        rows: int,
        action: tuple[int, torch.dtype],
        state_size: int,
        device: torch.device,
    ) -> None:
        self.layouts, self.steps = layouts, steps
        sizes = {"action": action[0], "state": state_size}
        self.fields: dict[str, Tensor] = {}
        for name, spec in FIELDS.items():
            dtype = action[1] if spec.dtype == "action" else getattr(torch, spec.dtype)
            shape = spec.shape(steps, rows, sizes)
            shape = (policies, *shape)
            self.fields[name] = poisoned(shape, dtype, device)
        self.obs = {
            name: poisoned((policies, steps + 1, rows, *layout.kept[1]), layout.kept[0], device)
            for name, layout in layouts.items()
        }
        self.final_value = poisoned((policies, steps, rows), torch.float32, device)
        """[P, T, b] see `Batch`."""
        self.updates: NDArray[np.int64] = np.full((steps, policies), -1, np.int64)
        self.weights_epoch: NDArray[np.int64] = np.full(policies, -1, np.int64)
        self.ready: Mark | None = None

    def batch(self, usable_P: NDArray[np.bool_]) -> Batch:
        """Return the batch that lies here. usable_P: whether it counts for a policy."""
        usable = torch.from_numpy(usable_P).to(self.fields["reward"].device)
        return batch_in_place(self.layouts, self.obs, self.fields, usable, self.final_value)

    def clear(self) -> None:
        """Write zeros over everything."""
        for memory in (*self.fields.values(), *self.obs.values(), self.final_value):
            memory.zero_()

    def poison(self) -> None:
        """Make it as it was made."""
        for memory in (*self.fields.values(), *self.obs.values(), self.final_value):
            memory.fill_(poison(memory.dtype))
