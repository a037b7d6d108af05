"""See `learner.simulators.Simulators`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pbt_rl.actors.tables import ShapingTable
from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError, require
from pbt_rl.learner.samplers import AnySampler, SlotShaping
from pbt_rl.learner.setup import LearnerSetup
from pbt_rl.learner.shared import SharedState
from pbt_rl.learner.simulators.layout import lay_out
from pbt_rl.learner.simulators.sampler import DeviceShaping, ResidentSampler
from pbt_rl.run.plan import PackPlan, Plan

__all__ = ["check", "lay_out", "make_sampler", "waits_for"]


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Raise ConfigError for what a simulator on the device cannot do yet, and for options of the other kind."""
    if not spec.resident:
        rows = config.rows
        require(not rows, "rows", rows, "it is for simulators on the device: use --envs-per-unit")
        return
    _check_abilities(config, spec)
    remedy = f"{config.env} is stepped by the thread that learns: use sync or serial"
    require(config.mode != "async", "mode", config.mode, remedy)
    remedy = f"{config.env} lives in the learner: leave it out, and give --rows"
    require(not config.actors, "actors", config.actors, remedy)
    require(not config.envs_per_unit, "envs-per-unit", config.envs_per_unit, remedy)
    remedy = f"{config.env} has one simulator for all rows: leave it out; --random-phases spreads them"
    require(not config.decorrelate_steps, "decorrelate-steps", config.decorrelate_steps, remedy)


def _check_abilities(config: Config, spec: EnvSpec) -> None:
    reasons = {
        f"--algo {config.algo}": config.algorithm.needs_final_steps or "",
        "several seats": "its rows play alone" if spec.seats > 1 else "",
        "tasks": "its episodes are of one kind" if spec.tasks else "",
        "stacks of frames": "give a recurrent core, or stack them in the environment"
        if spec.frame_stack > 1
        else "",
        "--model.last-action-reward": "add them to its observations"
        if config.model.last_action_reward
        else "",
    }
    for what, why in reasons.items():
        if why:
            raise ConfigError(
                f"{what} cannot be used with {config.env}, a simulator on the learner's device: {why}"
            )


def waits_for(packs: Iterable[PackPlan], *, begun: bool) -> str:
    """See Simulators."""
    if begun:
        return "the simulator takes its first steps, which may compile for minutes"
    rows = sum(pack.rows for pack in packs)
    return f"torch is loaded and the simulator of {rows:,} rows is made, which may take minutes"


def make_sampler(
    setup: LearnerSetup,
    pack: Pack,
    shared: SharedState,
    table: ShapingTable,
    distribution: Distribution,
    beat: Callable[[], None],
    give_up: Callable[[str], object],
) -> tuple[AnySampler, SlotShaping]:
    """See Simulators."""
    shaping = DeviceShaping(table, setup.plan.slots, pack.device)
    seed = setup.seed + 1
    sampler = ResidentSampler(
        pack, shared, setup.config, setup.spec, setup.plan, shaping, distribution, seed, beat, give_up
    )
    return sampler, shaping
