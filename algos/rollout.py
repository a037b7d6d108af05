"""Rollouts: T steps of one unit, kept on the device of its pack.

Axes: T steps, R rows of a unit (R = P * b, policy-major), P policies, B = b rows of a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .fields import FIELDS, OUTCOMES, Span, Transitions, poisoned
from .observations import ObsLayout, push_frames
from .streams import Mark


def native(tensor: Tensor) -> Any:
    """Return a CPU tensor as numpy, whose small writes cost a tenth; a tensor of another device as it is."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


class Rollout(Transitions[NDArray[Any]]):
    """Buffers of T steps of a unit, made once and used again and again. Fresh memory is poisoned.

    Beside the fields of `Transitions`:

    obs: name -> [T+1, R, ...] on the device, as stored.
    updates[t, p]: batches that the weights which acted at step t had learned from.
    weights_epoch[p]: that of the slot when the rollout began; exchanged weights make the rollout outdated.
    unit: number of the unit that fills it, among those of the pack.
    ready: set by whoever hands the rollout on; the next one uses it after this mark (streams.py).

    The same memory prepared for writing, so that a step costs no look-up of shapes:

    by_policy: name -> [T(+1), P, B, ...] of every field that the policy writes at each step, as `native` gives it.
    outcomes: the arrays of OUTCOMES, in that order.
    stored[t]: name -> [P, B, ...] observations as stored.
    """

    def __init__(
        self,
        layouts: Mapping[str, ObsLayout],
        steps: int,
        rows: int,
        policies: int,
        action: tuple[int, torch.dtype],
        state_size: int,
        device: torch.device,
    ) -> None:
        columns, action_dtype = action
        sizes = {"action": columns, "state": state_size}
        arrays: dict[str, Any] = {}
        for name, spec in FIELDS.items():
            shape = spec.shape(steps, rows, sizes)
            dtype = action_dtype if spec.dtype == "action" else getattr(torch, spec.dtype)
            on_host = spec.source == "environment"
            arrays[name] = spec.on_host(shape) if on_host else poisoned(shape, dtype, device)
        super().__init__(**arrays)

        self.layouts, self.steps, self.rows = layouts, steps, rows
        self.obs = {
            name: poisoned((steps + 1, rows, *layout.stored[1]), layout.stored[0], device)
            for name, layout in layouts.items()
        }
        self.updates = np.full((steps, policies), -1, np.int64)
        self.weights_epoch = np.full(policies, -1, np.int64)
        self.unit = -1
        self.ready: Mark | None = None

        def split(x: Tensor) -> Tensor:
            return x.view(x.shape[0], policies, rows // policies, *x.shape[2:])

        self.by_policy = {
            name: native(split(arrays[name]))
            for name, spec in FIELDS.items()
            if spec.source == "policy" and spec.span is not Span.START
        }
        self.outcomes = [arrays[name] for name in OUTCOMES]
        stored = {name: split(obs) for name, obs in self.obs.items()}
        self.stored = [{name: obs[t] for name, obs in stored.items()} for t in range(steps + 1)]
        self._on_host = device.type == "cpu"
        self._obs = {name: native(obs) for name, obs in self.obs.items()}

    def write_obs(self, t: int, obs: Mapping[str, NDArray[Any]], first: NDArray[np.bool_]) -> None:
        """Copy the observation of step t from the host. t = 0 only for a unit's very first: all rows are `first`."""
        self.first[t] = first
        for name, layout in self.layouts.items():
            if layout.stack > 1:
                push_frames(self.obs[name][t], self.obs[name][t - 1], obs[name], first)
            elif self._on_host:
                self._obs[name][t] = obs[name]
            else:
                self.obs[name][t].copy_(torch.from_numpy(obs[name]), non_blocking=True)

    def follow(self, before: Rollout) -> None:
        """Begin where `before` ended: its last observation is this one's first."""
        for name, obs in self._obs.items():
            obs[0] = before._obs[name][-1]
        self.first[0] = before.first[-1]
