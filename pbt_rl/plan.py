"""Make a plan from a config and a machine: devices, actors, rows and threads. Pure but `Machine.here`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError

MIN_UNIT_ROWS = 32
"""With fewer rows the calls of a vector environment cost too much (on Atari 32 rows were 9 % faster than 16)."""
MIN_POLICY_ROWS = 8
"""With fewer rows a forward of one policy wastes the CPU's vector units."""


@dataclass(frozen=True)
class Machine:
    """Processors that this process may use."""

    cpus: int
    gpus: int

    @classmethod
    def here(cls) -> Machine:
        """Count cores by affinity and cgroup quota, GPUs by torch."""
        import torch  # noqa: PLC0415 - only the parent and the learners may pay for it

        return cls(available_cpus(), torch.cuda.device_count())


def available_cpus(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores that this process may use: its affinity, limited by the CPU quota of its cgroup (v2 or v1)."""
    cpus = float(len(os.sched_getaffinity(0)))
    quota = _cgroup_cpus(cgroup_root)
    return max(1, math.floor(min(cpus, quota) + 0.01))


def _cgroup_cpus(root: Path) -> float:
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    return math.inf if quota in ("max", "-1") else float(quota) / float(period)


@dataclass(frozen=True)
class PackPlan:
    """One learner process: its device, the members that belong to it, and its share of the actors.

    If it has fewer slots than members, they take turns.
    """

    device: str
    members: tuple[int, ...]
    actors: int
    units_per_actor: int
    envs_per_policy: int
    """b: environments of each policy in one unit."""
    units_per_batch: int
    """k: rollouts of units in one training batch."""
    threads: int
    """CPU threads of the learning arithmetic."""
    slots: int
    """P: members on the device at the same time."""

    @property
    def rows(self) -> int:
        """R: environments of one unit."""
        return self.slots * self.envs_per_policy

    @property
    def units(self) -> int:
        """Units that this learner serves."""
        return self.actors * self.units_per_actor


@dataclass(frozen=True)
class Plan:
    """The whole run."""

    packs: tuple[PackPlan, ...]
    cpus: int

    @property
    def pack_of(self) -> dict[int, int]:
        """Member -> number of its pack."""
        return {member: number for number, pack in enumerate(self.packs) for member in pack.members}

    @property
    def actors(self) -> int:
        """Actor processes in all."""
        return sum(p.actors for p in self.packs)

    @property
    def environments(self) -> int:
        """Environments in all."""
        return sum(p.units * p.rows for p in self.packs)


def parse_devices(text: str, machine: Machine) -> list[str]:
    """Return one device per learner from `--devices`. Raises ConfigError for a device that is not there."""
    if text == "auto":
        return [f"cuda:{i}" for i in range(machine.gpus)] or ["cpu"]
    devices = [d.strip() for d in text.split(",")]
    for device in devices:
        kind, _, index = device.partition(":")
        if kind == "cpu" and not index:
            continue
        known = "cpu" + "".join(f", cuda:{i}" for i in range(machine.gpus))
        if kind != "cuda" or not (index or "0").isdigit():
            raise ConfigError(f"--devices {device!r} is not a device: use auto or a list of {known}")
        if int(index or 0) >= machine.gpus:
            raise ConfigError(f"--devices {device!r} is not on this machine: it has {known}")
    return [d if d != "cuda" else "cuda:0" for d in devices]


def make_plan(config: Config, machine: Machine, seats: int = 1) -> Plan:
    """Place members on devices and divide the cores. seats: of one environment (S), each of them a row."""
    devices = parse_devices(config.devices, machine)
    slots = min(config.slots or config.num_policies, config.num_policies)
    if config.devices == "auto":
        devices = devices[: 1 if config.mode == "serial" else slots]
    if config.mode == "serial" and len(devices) > 1:
        raise ConfigError(f"--devices {config.devices} cannot be used with --mode serial: give one device")
    if len(devices) > slots:
        policies = f"{slots} slots" if slots < config.num_policies else f"{slots} policies"
        raise ConfigError(
            f"--devices {config.devices} names {len(devices)} devices for {policies}: give at most one per policy"
        )
    on_cpu = sum(d == "cpu" for d in devices)
    actors = config.actors or _planned_actors(config, machine, len(devices), on_cpu)
    if actors < len(devices):
        raise ConfigError(f"--actors {actors} is too few: each of the {len(devices)} devices needs one")
    packs = []
    for i, device in enumerate(devices):
        members = tuple(range(i, config.num_policies, len(devices)))
        here, own_actors = (len(range(i, total, len(devices))) for total in (slots, actors))
        packs.append(_pack_plan(config, machine, device, members, here, own_actors, on_cpu, seats))
    return Plan(tuple(packs), machine.cpus)


def _planned_actors(config: Config, machine: Machine, devices: int, on_cpu: int) -> int:
    """Return one actor per core that the learners do not keep busy.

    On a CPU, learning and inference cost more than the environments (on Atari about 57 % of all), but an actor
    sleeps while it waits; so actors are half as many as cores, and never fewer than two.
    """
    if config.mode == "serial":
        return devices
    wanted = machine.cpus // 2 if on_cpu else machine.cpus - devices
    return max(wanted, 2 * devices)


def _pack_plan(
    config: Config,
    machine: Machine,
    device: str,
    members: tuple[int, ...],
    slots: int,
    actors: int,
    on_cpu: int,
    seats: int,
) -> PackPlan:
    envs = config.envs_per_unit or max(MIN_POLICY_ROWS, math.ceil(MIN_UNIT_ROWS / slots))
    units = actors * config.units_per_actor
    per_unit = config.algorithm.learns_per_unit
    if config.mode != "async" and not per_unit and not config.envs_per_unit:
        envs = max(1, round(config.learner.batch / (config.learner.rollout * units)))
    if config.envs_per_unit:
        _check_seats(config, seats, slots, envs)
    else:
        envs = -(-envs // seats) * seats  # so that the rows fill whole environments
    if per_unit:
        k = 1
    elif config.mode == "async":
        k = min(units, max(1, round(config.learner.batch / (config.learner.rollout * envs))))
    else:
        k = units
    if config.learner.minibatches > k * envs:
        raise ConfigError(
            f"--learner.minibatches {config.learner.minibatches} is more than the {k * envs} rollouts in a batch "
            f"of a policy: use at most {k * envs}, or a larger --learner.batch"
        )
    threads = config.learner.threads
    if not threads:
        spare = machine.cpus - machine.cpus // 2 if on_cpu else machine.cpus
        threads = max(1, spare // max(1, on_cpu)) if device == "cpu" else 1
    return PackPlan(device, members, actors, config.units_per_actor, envs, k, threads, slots)


def _check_seats(config: Config, seats: int, slots: int, envs: int) -> None:
    """Raise ConfigError unless the rows of a unit fill its environments."""
    alone = slots == 1 or config.matchup.scheme == "self"
    rows = envs if alone else slots * envs
    if rows % seats:
        whose = "a member plays all seats itself" if alone else f"a unit has {rows} rows"
        raise ConfigError(
            f"--envs-per-unit {envs} cannot be used: an environment has {seats} seats, and {whose}: give a multiple "
            f"of {seats}, or leave it out"
        )
