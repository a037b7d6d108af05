"""Plan of a run with device simulators, and checks of its options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError, require
from pbt_rl.plan.layout import PackPlan, Plan, check_minibatches, sizing_of
from pbt_rl.plan.machine import Machine


def lay_out(
    config: Config,
    machine: Machine,
    devices: Sequence[str],
    members: Sequence[tuple[int, ...]],
    slots: Sequence[int],
) -> Plan:
    """Plan one simulator per device. Raises ConfigError if a batch cannot be split into the minibatches.

    By default, the number of rows is chosen to fill --learner.batch.

    members: ids of each device's members. slots: number of slots of each device.
    """
    rows = config.rows or max(1, round(config.learner.batch / config.learner.rollout))
    most = min(rows, config.pbt.objective_episodes)
    packs = tuple(
        PackPlan(
            device=device,
            members=members[i],
            actors=0,
            vector_envs_per_actor=1,
            envs_per_policy=rows,
            vector_envs_per_batch=1,
            threads=config.learner.threads
            or (max(1, machine.cpus // len(devices)) if device == "cpu" else 1),
            slots=slots[i],
            groups=max(g for g in range(1, most + 1) if rows % g == 0),
        )
        for i, device in enumerate(devices)
    )
    for pack in packs:
        check_minibatches(config, pack)
    return Plan(packs, machine.cpus, sizing_of(config, max(slots), 1, on_gpu="cpu" not in devices))


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Check that the options suit the environment, which is a device simulator or not. Raises ConfigError if not."""
    if not spec.simulator:
        rows = config.rows
        require(not rows, "rows", rows, "--rows is for device simulators. Use --envs-per-vector-env")
        return
    _check_abilities(config, spec)
    remedy = f"{config.env} is stepped by the learning thread. Use sync or serial"
    require(config.mode != "async", "mode", config.mode, remedy)
    remedy = f"{config.env} runs in the learner, without actors. Leave --actors out, and give --rows"
    require(not config.actors, "actors", config.actors, remedy)
    require(not config.envs_per_vector_env, "envs-per-vector-env", config.envs_per_vector_env, remedy)


def _check_abilities(config: Config, spec: EnvSpec) -> None:
    reasons = {
        f"--algo {config.algo}": config.algorithm.needs_final_steps or "",
        "several agents": "its rows are independent" if spec.agents > 1 else "",
        "tasks": "its episodes have no tasks" if spec.tasks else "",
        "stacks of frames": "give a recurrent core, or stack them in the environment"
        if spec.frame_stack > 1
        else "",
        "--model.last-action-reward": "add them to its observations"
        if config.model.last_action_reward
        else "",
    }
    for what, why in reasons.items():
        if why:
            raise ConfigError(f"{what} cannot be used with {config.env}, a device simulator: {why}")


def waits_for(packs: Iterable[PackPlan], *, begun: bool) -> str:
    """Return a message about the wait before the first frames. begun: all learners have started."""
    if begun:
        return "the simulator runs its first steps, which may compile for minutes"
    rows = sum(pack.rows for pack in packs)
    return f"loading torch and creating the simulator of {rows:,} rows, which may take minutes"
