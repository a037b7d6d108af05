"""A whole learner (sampler, trainer, members, slots) without processes, on any device, fed with made-up steps.

    with DrivenLearner(device="pretend:0", packing="vmap") as driven:
        driven.batches(2)
        driven.edit(member=1, donor=0)

The same options and turns give the same steps on every device, so what two of them did can be compared.
"""

from __future__ import annotations

import dataclasses
from multiprocessing.connection import Pipe
from typing import Any, Self

import numpy as np
import torch

from pbt_rl.actors.mailbox import Mailbox
from pbt_rl.actors.messages import Acknowledgement, Load, Save, SetValues
from pbt_rl.config.command import parse_train
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.learner.learner import Learner
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.resolved import ResolvedRun

VECTOR = {"obs": ArraySpec((5,), "float32")}
FRAMES = {"obs": ArraySpec((36, 36), "uint8")}
DISCRETE, GAUSSIAN = ActionSpec(nvec=(3, 2)), ActionSpec(low=(-0.5, 0.0), high=(0.5, 0.2))
OPTIONS = {
    "env": "toy/identity",
    "mode": "async",
    "num-policies": 3,
    "actors": 2,
    "vector-envs-per-actor": 1,
    "envs-per-vector-env": 12,
    "hypers.unroll": 6,
    "learner.rollout": 6,
    "learner.batch": 48,
    "learner.minibatches": 2,
    "learner.epochs": 1,
    "learner.precision": "float32",
    "model.hidden": 16,
    "model.layers": 1,
    "model.core-size": 8,
}


class MadeUpActor:
    """Writes steps that depend on nothing but its number and how many there were; keeps the actions."""

    def __init__(self, box: Mailbox, number: int) -> None:
        self._box, self._rng, self._steps = box, np.random.default_rng(number), 0
        self.actions: list[np.ndarray] = []

    def advance(self) -> bool:
        """Take one step if it is our turn."""
        if self._box.learner_has_turn:
            return False
        if self._steps:
            self.actions.append(self._box.action.copy())
        step, rng, rows = self._box.step, self._rng, self._box.rows
        for array in step.obs.values():
            if array.dtype == np.uint8:
                array[:] = rng.integers(0, 256, array.shape)
            else:
                array[:] = rng.normal(size=array.shape)
        step.reward[:] = rng.normal(size=rows)
        step.terminated[:] = rng.random(rows) < 0.1
        step.truncated[:] = rng.random(rows) < 0.05
        step.first[:] = (rng.random(rows) < 0.1) | (self._steps == 0)
        step.episode_done[:] = False
        self._steps += 1
        self._box.header[0] += 1
        return True


class DrivenLearner:
    """One learner. Options are those of `pbt-rl train`, with `_` for `-` and the last part of a dotted name alone."""

    def __init__(
        self,
        *,
        device: str = "cpu",
        obs: dict[str, ArraySpec] = VECTOR,
        action: ActionSpec = DISCRETE,
        without: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        named = {_option(name): value for name, value in options.items()}
        config = parse_train([f"--{name}={value}" for name, value in (OPTIONS | named).items()])
        resolved = ResolvedRun.resolve(config, Machine(2, 0))
        stack = 4 if any(len(array.shape) == 2 for array in obs.values()) else 1
        (pack,) = resolved.plan.packs
        self.plan = dataclasses.replace(pack, device=device, threads=1)
        resolved = dataclasses.replace(
            resolved,
            spec=EnvSpec("toy/made-up", obs, action, frame_stack=stack, shaping={"bait": 0.5}),
            plan=dataclasses.replace(resolved.plan, packs=(self.plan,)),
        )
        self.values = {name: spec.default for name, spec in resolved.table.items()} | {"shaping.bait": 0.5}
        start = Start.fresh(resolved.plan, [self.values] * config.num_policies)
        threads = torch.get_num_threads()
        self._memory = Memory(resolved, start)
        self.ours, theirs = Pipe()
        self.learner = Learner(dataclasses.replace(self._memory.learners[0], without=without), theirs)
        torch.set_num_threads(threads)
        boxes = [box for record in self._memory.actors for box in record.boxes]
        self.actors = [MadeUpActor(box, number) for number, box in enumerate(boxes)]
        self._generation = 0
        self._left: set[int] = set()
        """Members whose state lies in an entry, one more than their number."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory."""
        self.learner.close()
        self._memory.close()

    def fill(self, turns: int = 200) -> None:
        """Let acting go on until there is a batch."""
        for _ in range(turns):
            if self.learner.trainer.has_batch:
                return
            for actor in self.actors:
                actor.advance()
            self.learner.sampler.run_inference()
        raise AssertionError(f"no batch after {turns} turns")

    def batches(self, number: int) -> None:
        """Act and learn until so many batches were learned from."""
        for _ in range(number):
            self.fill()
            self.learner.trainer.learn()
            if self.learner._on_policy:
                self.learner.sampler.resume_finished()

    def edit(
        self, member: int, weights: str = "copy", donor: int | None = None, **values: float
    ) -> Acknowledgement:
        """Change a member as the supervisor would."""
        self._generation += 1
        changed = self.values | values
        return self.carry_out(self.message(member, self._generation, weights, donor, changed))

    def message(
        self, member: int, generation: int, weights: str, donor: int | None, values: dict[str, float]
    ) -> Load | SetValues:
        """What the supervisor would send to change a member that holds a slot."""
        if weights == "keep":
            return SetValues(member, generation, values, donor)
        slot_of = self.learner.trainer.members.slot_of
        of_slot = slot_of(donor) if weights == "copy" else None
        initialised = (member, generation) if weights == "fresh" else None
        load = Load(
            slot_of(member), member, generation, values, of_slot=of_slot, initialised=initialised, donor=donor
        )
        if weights == "entry":
            return dataclasses.replace(load, entry=0)
        return load

    def carry_out(self, message: Load | SetValues) -> Acknowledgement | None:
        """Have a message carried out."""
        trainer = self.learner.trainer
        return trainer.load(message) if isinstance(message, Load) else trainer.set_values(message)

    def hand_over(self, slot: int, leaves: int | None, enters: int | None) -> Acknowledgement | None:
        """Let a slot change hands."""
        self._generation += 1
        pool, trainer = self._memory.pool, self.learner.trainer
        if leaves is not None:
            pool.grow(1 + leaves + 1)
            trainer.members.save(Save(leaves, 0, 1 + leaves))
            self._left.add(leaves)
        if enters is None:
            return trainer.load(Load(slot, None, 0, {}))
        entry = 1 + enters if enters in self._left else None
        initialised = None if enters in self._left else (enters, 0)
        self._left.discard(enters)
        return trainer.load(Load(slot, enters, self._generation, self.values, entry, initialised=initialised))

    @property
    def actions(self) -> list[np.ndarray]:
        """All actions that the actors were given, actor by actor."""
        return [action for actor in self.actors for action in actor.actions]

    def state(self, slot: int) -> dict[str, torch.Tensor]:
        """State of a slot's policy, on the CPU."""
        return {name: torch.as_tensor(x) for name, x in self.learner.pack.export_member(slot).items()}


def _option(name: str) -> str:
    """Name on the command line of an option's short name."""
    name = name.replace("_", "-")
    return next((known for known in (*OPTIONS, *MORE) if known.split(".")[-1] == name), name)


MORE = (
    "learner.packing",
    "learner.returns",
    "learner.lr-schedule",
    "learner.normalize-observations",
    "learner.normalize-images",
    "learner.lr-schedule-kl",
    "model.core",
    "model.encoder",
    "model.action-bounds",
)
