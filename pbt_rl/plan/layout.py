"""Plan of a run, computed from config and machine: devices, actors, rows and threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.plan.machine import Machine
from pbt_rl.plan.sizes import LEAST_VECTOR_ENV_ROWS, Sizing, plan_actors, share_actors


@dataclass(frozen=True)
class PackPlan:
    """Plan of one learner process: device, members and actors.

    If there are fewer slots than members, the members take turns in the slots (time slices).
    """

    device: str
    members: tuple[int, ...]
    actors: int
    vector_envs_per_actor: int
    envs_per_policy: int
    """b: rows of one policy in a vector env."""
    vector_envs_per_batch: int
    """k: rollouts of vector envs in one training batch."""
    threads: int
    """Number of CPU threads for learning."""
    slots: int
    """P: number of members on the device at the same time."""
    parts: int = 1
    """On a CPU: number of parts into which a minibatch is divided (algos/parts.py). Also the maximum number of policies
    that learn at the same time."""
    groups: int = 0
    """G: number of row groups of a policy in a device simulator. 0 without a device simulator.

    A row group is a set of rows whose episodes give one score (`learner/simulators/rounds.py`).
    """

    @property
    def rows(self) -> int:
        """R: rows of one vector env."""
        return self.slots * self.envs_per_policy

    @property
    def batch_rows(self) -> int:
        """Rows of a policy in a batch. Each row contributes one rollout."""
        return self.vector_envs_per_batch * self.envs_per_policy

    @property
    def environments(self) -> int:
        """Number of rows of all policies. A row is an environment, or one agent of a multi-agent environment."""
        return max(self.vector_envs, 1) * self.rows

    @property
    def environments_of_member(self) -> int:
        """Number of a member's environments in `Episode.environment`: rows, or row groups of a device simulator."""
        return self.groups or self.vector_envs * self.envs_per_policy

    @property
    def episodes_of_score(self) -> int:
        """Least number of episodes in one reported score. Device simulator: rows of a row group. Otherwise: 1.

        A score of a device simulator may be a mean over several rounds.
        """
        return self.envs_per_policy // self.groups if self.groups else 1

    @property
    def vector_envs(self) -> int:
        """Number of vector envs of this learner."""
        return self.actors * self.vector_envs_per_actor


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    packs: plan of each learner process. cpus: number of cores. sizing: inputs from which the sizes were chosen.
    """

    packs: tuple[PackPlan, ...]
    cpus: int
    sizing: Sizing

    @property
    def pack_of(self) -> dict[int, int]:
        """Member -> index of its pack."""
        return {member: number for number, pack in enumerate(self.packs) for member in pack.members}

    @property
    def environments_of(self) -> dict[int, int]:
        """Member -> `PackPlan.environments_of_member` of its pack."""
        return {m: pack.environments_of_member for pack in self.packs for m in pack.members}

    @property
    def rollout_age(self) -> tuple[int, int]:
        """Minimum and maximum planned rollout age, in optimiser steps."""
        ages = [self.sizing.age(pack.vector_envs, pack.vector_envs_per_batch) for pack in self.packs]
        return min(least for least, _ in ages), max(most for _, most in ages)

    @property
    def actors(self) -> int:
        """Total number of actors."""
        return sum(p.actors for p in self.packs)

    @property
    def environments(self) -> int:
        """Total number of rows. A row is an environment, or one agent of a multi-agent environment."""
        return sum(p.environments for p in self.packs)


def parse_devices(text: str, machine: Machine) -> list[str]:
    """Return the device of each learner, such as "cuda:0" or "cpu", from the text of --devices.

    Text `auto`: all GPUs, or the CPU if the machine has no GPU. Raises ConfigError for an invalid device, and for a GPU
    that the machine does not have.
    """
    if text == "auto":
        return [f"cuda:{i}" for i in range(machine.gpus)] or ["cpu"]
    devices = []
    for device in (part.strip() for part in text.split(",")):
        kind, _, index = device.partition(":")
        if kind == "cpu" and not index:
            devices.append("cpu")
            continue
        known = "cpu" + "".join(f", cuda:{i}" for i in range(machine.gpus))
        if kind != "cuda" or not (index or "0").isdecimal():
            remedy = f"use auto (every GPU), or a list such as cuda:0,cuda:1; this machine has {known}"
            raise ConfigError(f"--devices {device!r} is not a device: {remedy}")
        if int(index or 0) >= machine.gpus:
            raise ConfigError(f"--devices {device!r} is not on this machine: use {known}")
        devices.append(f"cuda:{int(index or 0)}")  # as torch writes it, without leading zeros
    return devices


LEAST_PART = 32
"""Minimum number of steps in a part of a minibatch. Smaller parts take longer per step."""
PARTS_SHARE = 0.75
"""Fraction of the cores for learning in parts. With Atari's recipe, learning takes 70 % of the CPU time
(docs/lab/speed.md)."""

LayOut = Callable[[Config, Machine, Sequence[str], Sequence[tuple[int, ...]], Sequence[int]], Plan]
"""Function that returns a plan. Arguments: config, machine, devices, members of each device, slots of each device."""


def make_plan(
    config: Config,
    machine: Machine,
    agents: int = 1,
    lay_out: LayOut | None = None,
    *,
    pictures: bool = False,
) -> Plan:
    """Plan a run: assign members to devices, and divide the cores. Raises ConfigError if the options do not fit.

    agents: number of agents per environment. Each agent is one row.
    lay_out: function that makes the plan for a device simulator. None: the environments run in actors.
    pictures: True if a built-in CNN encodes images, which takes most of the policy's time.
    """
    devices = parse_devices(config.devices, machine)
    slots = min(config.slots or config.members, config.members)
    if config.devices == "auto":
        devices = devices[: 1 if config.mode == "serial" else slots]
    if config.mode == "serial" and len(devices) > 1 and {*devices} != {"cpu"}:
        raise ConfigError(
            f"--devices {config.devices} cannot be used with --mode serial: give one device, or cpu several times"
        )
    if len(devices) > slots:
        policies = f"{slots} slots" if slots < config.members else f"{slots} policies"
        raise ConfigError(
            f"--devices {config.devices} lists {len(devices)} devices for {policies}: give at most one per policy"
        )
    members = [tuple(range(i, config.members, len(devices))) for i in range(len(devices))]
    slots_of = [len(range(i, slots, len(devices))) for i in range(len(devices))]
    if lay_out is not None:
        return lay_out(config, machine, devices, members, slots_of)
    sizing = sizing_of(config, max(slots_of), agents, on_gpu="cpu" not in devices)
    members_of = [len(m) for m in members]
    if not config.actors:
        wanted = _wanted_actors(config, machine, devices)
        cores = wanted if config.mode == "serial" else machine.cpus
        sizing, actors = plan_actors(
            sizing, cores, wanted, config.vector_envs_per_actor, members_of, slots_of
        )
    elif config.actors >= len(devices):
        actors = share_actors(config.actors, members_of)
    else:
        raise ConfigError(
            f"--actors {config.actors} is too few: give at least one actor per device ({len(devices)})"
        )
    _, sizes = sizing.sizes([n * config.vector_envs_per_actor for n in actors], slots_of)
    packs = []
    for i, device in enumerate(devices):
        threads, parts = config.learner.threads or 1, 1
        if device == "cpu":
            shared = machine.cpus, devices.count("cpu")
            threads = _threads(config, *shared)
            if pictures and _may_learn_in_parts(config):
                threads, parts = _in_parts(config, *shared, sizes[i].batch_rows, threads)
        pack = PackPlan(
            device=device,
            members=members[i],
            actors=actors[i],
            vector_envs_per_actor=config.vector_envs_per_actor,
            envs_per_policy=sizes[i].envs,
            vector_envs_per_batch=sizes[i].rollouts,
            threads=threads,
            slots=slots_of[i],
            parts=parts,
        )
        check_minibatches(config, pack)
        packs.append(pack)
    return Plan(tuple(packs), machine.cpus, sizing)


def sizing_of(config: Config, slots: int, agents: int, *, on_gpu: bool) -> Sizing:
    """Collect the inputs for planning the sizes of vector envs and batches.

    slots: number of slots of the largest pack. agents: number of agents per environment. on_gpu: True if all learners
    have a GPU.
    """
    return Sizing(
        batch_rows=config.learner.batch / config.learner.rollout,
        max_policy_lag=config.learner.max_policy_lag,
        batch_steps=config.optimizer_steps_of_batch,
        slots=slots,
        agents=agents,
        minibatches=config.learner.minibatches,
        envs=config.envs_per_vector_env,
        on_policy=config.mode != "async",
        least_rows=LEAST_VECTOR_ENV_ROWS if config.mode == "async" else LEAST_VECTOR_ENV_ROWS // 2,
        per_vector_env=config.algorithm.learns_per_vector_env,
        on_gpu=on_gpu,
    )


def _wanted_actors(config: Config, machine: Machine, devices: Sequence[str]) -> int:
    """Return the preferred number of actors: in mode serial one per device, in other modes at least two per device.

    With GPUs, each core has an actor, except one core per learner (`plan_actors` may give this core an actor, too). On
    a CPU, there are half as many actors as cores. Actors get less than half of the CPU time, because learning and
    inference take the rest (57 % on Atari with one optimiser step per batch). This number is still useful, because
    a waiting actor needs no core.
    """
    if config.mode == "serial":
        return len(devices)
    wanted = machine.cpus // 2 if "cpu" in devices else machine.cpus - len(devices)
    return max(wanted, 2 * len(devices))


def _may_learn_in_parts(config: Config) -> bool:
    """Check whether a learner on the CPU may learn from parts of a minibatch in several threads (algos/parts.py).

    Requirements: the async mode, packing `loop` or `auto`, built-in network modules, and an algorithm with neither a
    custom backward pass nor an auxiliary loss.
    """
    return (
        config.mode == "async"
        and config.learner.packing in ("auto", "loop")
        and not config.model.own_parts
        and config.algorithm.backward is None
        and config.algorithm.auxiliary is None
    )


def _threads(config: Config, cpus: int, learners: int) -> int:
    """Return the number of CPU threads of a learner on the CPU.

    By default, all learners on the CPU share half of the cores, rounded up, with at least one thread each.
    cpus: number of cores. learners: number of learners on the CPU.
    """
    return config.learner.threads or max(1, (cpus - cpus // 2) // learners)


def _in_parts(config: Config, cpus: int, learners: int, batch_rows: int, usual: int) -> tuple[int, int]:
    """Return the number of threads of a learner on the CPU, and the number of parts of a minibatch.

    By default, learners that divide minibatches share PARTS_SHARE of the cores, rounded up. All parts have the same
    number of threads.

    cpus: number of cores. learners: number of learners on the CPU. batch_rows: rows of a policy in a batch.
    usual: number of threads without parts, for a minibatch that is too small to be divided.
    """
    threads = config.learner.threads or max(1, ceil(PARTS_SHARE * cpus) // learners)
    minibatches = 1 if config.algorithm.learns_per_vector_env else config.learner.minibatches
    steps = batch_rows * config.learner.rollout // minibatches
    rows = steps if config.learns_single_steps else batch_rows // minibatches
    parts = min(threads, rows, steps // LEAST_PART)
    if parts < 2:
        return usual, 1
    parts = ceil(rows / ceil(rows / parts))  # use fewer parts if the largest part does not become larger
    return config.learner.threads or threads // parts * parts, parts


def check_minibatches(config: Config, pack: PackPlan) -> None:
    """Raise ConfigError if a policy's batch has fewer rollouts or single steps than --learner.minibatches."""
    parts, most, of_what = config.learner.minibatches, pack.batch_rows, "rollouts"
    if config.learns_single_steps:
        most, of_what = most * config.learner.rollout, "steps"
    if parts > most and not config.algorithm.learns_per_vector_env:
        raise ConfigError(
            f"--learner.minibatches {parts} is more than the {most} {of_what} in a policy's batch: use at most "
            f"{most}, or a larger --learner.batch"
        )
