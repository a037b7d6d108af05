"""Lay out simulators: one for each device, of the rows of all its policies. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pbt_rl.config import Config
from pbt_rl.run.plan.layout import PackPlan, Plan, check_minibatches, sizing_of
from pbt_rl.run.plan.machine import Machine


def lay_out(
    config: Config,
    machine: Machine,
    devices: Sequence[str],
    members: Sequence[tuple[int, ...]],
    slots: Sequence[int],
) -> Plan:
    """Give each device a simulator. Without --rows there are as many rows as make the batch that is asked for."""
    rows = config.rows or max(1, round(config.learner.batch / config.learner.rollout))
    most = min(rows, config.pbt.objective_episodes)
    packs = tuple(
        PackPlan(
            device=device,
            members=members[i],
            actors=0,
            units_per_actor=1,
            envs_per_policy=rows,
            units_per_batch=1,
            threads=config.learner.threads
            or (max(1, machine.cpus // len(devices)) if device == "cpu" else 1),
            slots=slots[i],
            groups=max(g for g in range(1, most + 1) if rows % g == 0),
        )
        for i, device in enumerate(devices)
    )
    for pack in packs:
        check_minibatches(config, pack)
    return Plan(packs, machine.cpus, sizing_of(config, max(slots), 1, on_gpu="cpu" not in devices), 0)
