"""State of a learner in a checkpoint, except the states of its members.

    always          states of the random generators of sampler and trainer, and of torch's default generator on the
                    CPU. For each slot: its member, whether the member is evaluated, and the versions of weights,
                    shaping and lineage
    serial mode     last observation and recurrent state of each vector env, if the vector envs are between two batches

The states of the environments are saved elsewhere (`save_vector_envs` in run/serial.py). If they can be saved, too, and
the algorithm has no replay memory, a serial run resumes bit for bit. If they cannot be saved, the vector envs start new
episodes.

The saved state consists of JSON types. Arrays are encoded as base64.

Axes: R rows of a vector env.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.actors.mailbox import OBSERVATIONS
from pbt_rl.algos.pack import Pack
from pbt_rl.learner.sampler import SampledVectorEnv, Sampler
from pbt_rl.learner.shared import SharedState, SlotMember
from pbt_rl.learner.simulators.simulator_sampler import AnySampler, SlotShaping
from pbt_rl.learner.trainer import Trainer


class Continuation:
    """Access to a learner's state: `save` returns the state, and `restore` sets it before sampling starts."""

    def __init__(
        self,
        pack: Pack,
        shared: SharedState,
        sampler: AnySampler,
        trainer: Trainer,
        shaping: SlotShaping,
    ) -> None:
        self._pack, self._shared, self._shaping = pack, shared, shaping
        self._sampler, self._trainer = sampler, trainer

    def save(self, *, vector_envs: bool) -> dict[str, Any]:
        """Return the state. vector_envs: True includes the vector envs. They must then be between two batches."""
        if vector_envs:
            self._sampler.take_resets()  # because pending resets are not saved
        return {
            "generators": {name: _encoded(g.get_state().numpy()) for name, g in self._generators()},
            "slots": [self._slot(p) for p in range(self._pack.num_policies)],
            "units": [
                _vector_env(vector_env)
                for vector_env in self._sampler.vector_envs
                if vector_envs and vector_env.taken
            ],
        }

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Restore a state, if it was saved with the same members in the slots. Otherwise, change nothing.

        Return True if the state and all vector envs were restored. With a device simulator, which has no vector envs,
        return True if the state was restored.
        """
        if not _is_for(saved, [self._shared.member_of(p) for p in range(self._pack.num_policies)]):
            return False
        for name, generator in self._generators():
            state = _decoded(saved["generators"][name])
            if state.nbytes == generator.get_state().numel():  # unequal if the device type has changed
                generator.set_state(torch.from_numpy(state))
        for p, slot in enumerate(saved["slots"]):
            self._restore_slot(p, slot)
        # Restore the vector envs only if all have the saved sizes. Otherwise they start new episodes.
        rest = [*map(vector_env_rows, saved["units"])] == [
            vector_env.box.rows for vector_env in self._sampler.vector_envs
        ]
        if rest and isinstance(self._sampler, Sampler):
            for vector_env, content in zip(self._sampler.vector_envs, saved["units"], strict=True):
                _restore_vector_env(vector_env, content)
                self._sampler.rest(vector_env)
        return rest

    def _generators(self) -> list[tuple[str, torch.Generator]]:
        return [
            ("acting", self._sampler.generator),
            ("learning", self._trainer.generator),
            ("default", torch.default_generator),
        ]

    def _slot(self, slot: int) -> dict[str, Any]:
        state = self._shared.pack
        slot_member = state.slot_members[slot]
        return {
            "holder": self._shared.member_of(slot),
            "weights_version": int(state.weights_version[slot]),
            "lineage_version": int(state.lineage_version[slot]),
            "shaping_version": int(self._shaping.shaping_version[slot]),
            "generation_of": [] if slot_member is None else sorted(slot_member.generation_of.items()),
            "evaluated": bool(state.evaluated[slot]),
            "evaluations": [] if slot_member is None else sorted(slot_member.evaluations),
        }

    def _restore_slot(self, slot: int, saved: Mapping[str, Any]) -> None:
        state = self._shared.pack
        state.weights_version[slot] = saved["weights_version"]
        # Versions of pbt_rl up to 0.2 saved the lineage version as "weights_epoch".
        state.lineage_version[slot] = saved.get("lineage_version", saved.get("weights_epoch"))
        slot_member = state.slot_members[slot]
        if slot_member is not None:
            state.slot_members[slot] = SlotMember(
                slot_member.member,
                {int(v): int(g) for v, g in saved["generation_of"]},
                {int(v) for v in saved["evaluations"]},
            )
            state.evaluated[slot] = saved["evaluated"]
            self._shaping.write(slot, saved["shaping_version"], self._shaping.read(slot)[1])


def shaping_versions(saved: Mapping[str, Any], slot_members: Sequence[int | None]) -> list[int]:
    """Return the saved shaping version of each slot.

    Returns zeros if `saved` is empty, or if other members had the slots.

    saved: result of `Continuation.save`. slot_members: present member of each slot. None: empty slot.
    """
    if not saved or not _is_for(saved, slot_members):
        return [0] * len(slot_members)
    return [slot["shaping_version"] for slot in saved["slots"]]


def _is_for(saved: Mapping[str, Any], slot_members: Sequence[int | None]) -> bool:
    return [slot["holder"] for slot in saved["slots"]] == list(slot_members)


def vector_env_rows(saved: Mapping[str, Any]) -> int:
    """Return the number of rows of a saved vector env. saved: entry of "units" in the saved state."""
    rows: int = saved["first"]["shape"][0]
    return rows


def _vector_env(vector_env: SampledVectorEnv) -> dict[str, Any]:
    """Return the last observation of a waiting vector env, and the recurrent state before this observation."""
    return {
        "obs": {name: _encoded(_host(obs)) for name, obs in _newest(vector_env).items()},
        "first": _encoded(vector_env.rollout.first[-1]),
        "state": _encoded(_host(vector_env.state)),
        "rollouts": vector_env.rollouts,
    }


def _newest(vector_env: SampledVectorEnv) -> dict[str, Tensor]:
    """Return views of the last observation, name -> [R, ...], with stacked frames."""
    return {name: vector_env.stacks.get(name, obs[-1]) for name, obs in vector_env.rollout.obs.items()}


def _restore_vector_env(vector_env: SampledVectorEnv, saved: Mapping[str, Any]) -> None:
    for name, obs in _newest(vector_env).items():
        obs.copy_(torch.from_numpy(_decoded(saved["obs"][name])))
    vector_env.rollout.first[-1] = _decoded(saved["first"])
    vector_env.state.copy_(torch.from_numpy(_decoded(saved["state"])))
    vector_env.rollouts = saved["rollouts"]
    vector_env.taken = 1
    vector_env.box.header[OBSERVATIONS] = 1  # as after the first step, when the actor waits for actions


def _host(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def _encoded(array: NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": data}


def _decoded(saved: Mapping[str, Any]) -> NDArray[Any]:
    data = np.frombuffer(bytearray(base64.b64decode(saved["base64"])), saved["dtype"])
    return data.reshape(saved["shape"])
