"""Batches (concatenated rollouts on the device), and the samples of a batch that a group of policies learns from.

Axes: P policies, G policies of one group, T steps, k rollouts of b rows per policy, B rows of a policy (B = k * b), S
size of the recurrent state. In `Segments`: L steps, S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels import uploaded
from .observations import ObsLayout, last_stack, restack, restack_torch
from .rollout import FIELDS, Rollout, Span, Transitions


class Segments(NamedTuple):
    """Replayed segments (replay.py): S segments of L steps, with fields of shape [P, L, S, ...], on the device.

    A segment may start at any step of an episode. If the episode ends within the segment, the steps after the end are
    invalid.
    """

    obs: dict[str, Tensor]
    """Name -> [P, L+1, S, ...], as stored in a batch. An auxiliary loss gets the observations as the network receives
    them."""
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    """[P, L+1, S] bool: the observation is the first of an episode"""
    valid: Tensor
    """[P, L, S] bool: True until the first reset after the segment's start. All False for a policy for which the replay
    has no segment"""

    def each(self, change: Callable[[Tensor], Tensor]) -> Segments:
        """Return a copy in which `change` was applied to every tensor."""
        return Segments({name: change(x) for name, x in self.obs.items()}, *(change(x) for x in self[1:]))

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in a fixed order."""
        return [*self.obs.values(), *self[1:]]


@dataclass(frozen=True, eq=False)
class Batch(Transitions[Tensor]):
    """Transitions of k rollouts, on the device. The rollouts are side by side on axis B = k * b.

    Fields are [P policies, T steps, B, ...]. Fields that also have the step after the last step are [P, T+1, B, ...]
    (see `Transitions`). `state` is [P, B, S], S: size of the recurrent state. b: rows of a policy in one rollout.
    """

    rollouts: Sequence[Rollout]
    """Rollouts of the batch. The observations stay in the rollouts."""
    envs: int
    """b, rows of a policy in one rollout"""
    valid: Tensor
    """[P, T, B] bool: True if the transition is not a reset, and the policy may learn from the rollout"""
    final_value: Tensor | None = None
    """[P, T, B], in reward units: value of the final observation where `truncated`, for environments with same-step
    resets. None: environments have next-step resets, and `value` of the next step is the value of the final
    observation."""
    replayed: tuple[Segments, ...] = ()
    """Segments drawn from the algorithm's replay memory, if any."""

    @property
    def layouts(self) -> Mapping[str, ObsLayout]:
        """Storage layouts of the observations."""
        return self.rollouts[0].layouts

    def obs(self, span: slice, into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the observations of the slots in `span`, [G, T, B, ...], with stacked frames (`ObsLayout.stored`).

        span: G consecutive slots. into: destination tensors by name. Missing tensors are allocated and added.
        """
        places = {} if into is None else into
        for name, layout in self.layouts.items():
            if name not in places:
                places[name] = self._place(layout, span, in_turns=into is None)
            for k, rollout in enumerate(self.rollouts):
                self._put(rollout, name, span, k, places[name])
        return places

    def last_obs(self, span: slice) -> dict[str, Tensor]:
        """Return the observations after the last step, [G, 1, B, ...], with stacked frames. span: G slots."""
        found = {}
        for name, layout in self.layouts.items():
            parts = []
            for k, rollout in enumerate(self.rollouts):
                kept_SGb = rollout.obs[name].unflatten(1, (-1, self.envs))[:, span]
                if layout.stack > 1:
                    columns = slice(k * self.envs, (k + 1) * self.envs)
                    first_TGb = self.first[span, :, columns].transpose(0, 1)
                    parts.append(last_stack(kept_SGb, first_TGb))
                else:
                    parts.append(kept_SGb[-1])
            found[name] = torch.cat(parts, 1).unsqueeze(1)
        return found

    def last_state(self, span: slice) -> Tensor:
        """Return the recurrent state that the network receives with `last_obs`, [G, B, S]. span: G slots."""
        return torch.cat([r.last_state.unflatten(0, (-1, self.envs))[span] for r in self.rollouts], 1)

    def _place(self, layout: ObsLayout, span: slice, *, in_turns: bool) -> Tensor:
        """Allocate an observation array [G, T, B, ...]. in_turns: True for the memory order [T, G, B, ...]."""
        dtype, shape = layout.stored
        policies, steps = self.valid[span].shape[:2]
        rows = self.envs * len(self.rollouts)
        lying = (steps, policies, rows, *shape) if in_turns else (policies, steps, rows, *shape)
        place = torch.empty(lying, dtype=dtype, device=self.valid.device)
        return place.transpose(0, 1) if in_turns else place

    def _put(self, rollout: Rollout, name: str, span: slice, k: int, place_GTB: Tensor) -> None:
        """Copy one observation of rollout number k into this rollout's rows (axis B) of `place_GTB`.

        span: slots to copy. name: name of the observation.
        """
        kept_SPb = rollout.obs[name].unflatten(1, (-1, self.envs))
        steps, columns = place_GTB.shape[1], slice(k * self.envs, (k + 1) * self.envs)
        here_TGb = place_GTB.transpose(0, 1)[:, :, columns]
        if self.layouts[name].stack == 1:
            here_TGb.copy_(kept_SPb[:steps, span])
        elif place_GTB.device.type == "cpu":
            first_policy = range(kept_SPb.shape[1])[span].start
            restack(
                place_GTB.transpose(0, 1),
                rollout.obs[name],
                rollout.first,
                first_policy,
                columns.start,
                self.envs,
            )
        else:
            first_TGb = self.first[span, :steps, columns].transpose(0, 1)
            restack_torch(here_TGb, kept_SPb[:, span], first_TGb)


def make_batch(
    rollouts: Sequence[Rollout], policies: int, usable_PK: NDArray[np.bool_], device: torch.device
) -> Batch:
    """Concatenate rollouts into a batch on `device`.

    policies: P. usable_PK[p, k]: True if policy p may learn from rollout k.
    """
    envs = rollouts[0].rows // policies

    host: dict[str, NDArray[Any]] = {}
    tensors: dict[str, Any] = {}
    for name, spec in FIELDS.items():
        parts = [getattr(r, name) for r in rollouts]
        if spec.source == "environment":
            arrays = [x.reshape(x.shape[0], policies, envs).swapaxes(0, 1) for x in parts]
            host[name] = np.concatenate(arrays, axis=2)
        elif spec.span is Span.START:
            tensors[name] = torch.cat([x.view(policies, envs, -1) for x in parts], dim=1)
        else:
            split = [x.view(x.shape[0], policies, envs, *x.shape[2:]).transpose(0, 1) for x in parts]
            tensors[name] = torch.cat(split, dim=2)
    tensors |= {name: uploaded(array, device) for name, array in host.items()}
    usable_P1B = np.repeat(usable_PK, envs, axis=1)[:, None]
    valid = uploaded(~host["first"][:, 1:] & usable_P1B, device)
    return Batch(rollouts=rollouts, envs=envs, valid=valid, replayed=(), **tensors)


@dataclass(frozen=True, eq=False)
class Samples(Transitions[Tensor]):
    """Samples of G policies from a batch or minibatch, with fields of shape [G, T, B, ...] (`state`: [G, B, S]).

    T: steps. B: rows of a policy. S: size of the recurrent state.
    """

    obs: dict[str, Tensor]
    """Observations with stacked frames (`ObsLayout.stored`)"""
    valid: Tensor
    """[G, T, B] bool: True if the policy may learn from the step"""
    last_value: Tensor
    """[G, B], value of the observation after the last step, in reward units. It comes from the weights before the
    update if `UpdateSettings.off_policy` is set, and from the weights that acted if not."""
    final_value: Tensor | None = None
    """[G, T, B], in reward units: value of the final observation where `truncated`. None if resets are next-step."""
    proximal: Tensor | None = None
    """[G, T, B], log probability of the action under the policy before the update. If this field is set, `value` comes
    from the policy before the update, too. None: `log_prob` and `value` come from the weights that acted."""
    advantage: Tensor | None = None
    """[G, T, B], fixed advantages for all epochs over the batch. None: advantages are computed for each minibatch."""
    replayed: tuple[Segments, ...] = ()
    """Replayed segments of these policies. Every minibatch contains all segments."""

    @classmethod
    def of(cls, batch: Batch, span: slice, obs_into: dict[str, Tensor] | None = None) -> Samples:
        """Select slots from a batch. span: G consecutive slots. obs_into: see `into` of `Batch.obs`."""
        parts = {}
        for name, spec in FIELDS.items():
            part = getattr(batch, name)[span]
            parts[name] = part[:, :-1] if spec.span is Span.STEPS_AND_NEXT else part
        return cls(
            obs=batch.obs(span, obs_into),
            valid=batch.valid[span],
            last_value=batch.value[span, -1],
            final_value=None if batch.final_value is None else batch.final_value[span],
            replayed=tuple(segments.each(lambda x: x[span]) for segments in batch.replayed),
            **parts,
        )

    def with_final_values(self, gamma_G: Tensor) -> Samples:
        """Replace truncations that have a `final_value` by terminations with reward r + gamma * final_value.

        Code that computes returns therefore needs no special case for final values. gamma_G: discount of each policy.
        """
        if self.final_value is None:
            return self
        ahead = torch.where(self.truncated, gamma_G[:, None, None] * self.final_value, 0.0)
        return replace(
            self, reward=self.reward + ahead, terminated=self.terminated | self.truncated, final_value=None
        )

    @property
    def old_log_prob(self) -> Tensor:
        """[G, T, B], log probability of the action under the policy that is the centre of the trust region."""
        return self.log_prob if self.proximal is None else self.proximal

    def parts(self, number: int) -> list[Samples]:
        """Split each policy's rows into at most `number` consecutive parts, without copying."""
        rows = self.valid.shape[2]
        return [
            self._rows(slice(int(part[0]), int(part[-1]) + 1))
            for part in np.array_split(np.arange(rows), min(number, rows))
        ]

    def _rows(self, rows: slice) -> Samples:
        return self._each(lambda x: x[:, :, rows], lambda x: x[:, rows])

    def columns(self, index: Tensor) -> Samples:
        """Select the rows `index` (1-D int64, positions on axis B), the same rows for every policy."""
        return self._each(lambda x: x.index_select(2, index), lambda x: x.index_select(1, index))

    def single_steps(self) -> Samples:
        """Reshape to rollouts of one step, [G, 1, T * B].

        The network must have no recurrent core, and the advantages must be fixed.
        """
        steps = self.valid.shape[1]
        return self._each(
            lambda x: x.flatten(1, 2).unsqueeze(1), lambda x: x.repeat(1, steps, *(1,) * (x.dim() - 2))
        )

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return all tensors by name, except observations and replayed segments."""
        return [(name, x) for name, x in vars(self).items() if isinstance(x, Tensor)]

    def _each(self, of_steps: Callable[[Tensor], Tensor], of_rows: Callable[[Tensor], Tensor]) -> Samples:
        by_row = {"last_value", *(name for name, spec in FIELDS.items() if spec.span is Span.START)}
        tensors = {name: of_rows(x) if name in by_row else of_steps(x) for name, x in self.tensors()}
        obs = {k: of_steps(v) for k, v in self.obs.items()}
        return Samples(obs=obs, replayed=self.replayed, **tensors)
