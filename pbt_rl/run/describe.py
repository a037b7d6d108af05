"""What is said of a run before anything starts: its plan in words, with notes on what its user may not have meant.

With it, an estimate of its memory, against what host and devices have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pbt_rl.config import Config
from pbt_rl.display.terminal import counted
from pbt_rl.errors import ConfigError
from pbt_rl.extras import offered
from pbt_rl.learner.build import network_sees
from pbt_rl.learner.estimate import PackBytes, pack_bytes
from pbt_rl.pbt.hypers import OFF, HyperSpec, Values
from pbt_rl.pbt.registry import controller_entry
from pbt_rl.plan import HostMemory, PackPlan, host_memory
from pbt_rl.plan.sizes import LAG_OF_QUEUE, LEAST_SPARE_ROWS, Size
from pbt_rl.run.games import games
from pbt_rl.run.opponents import opponents
from pbt_rl.run.resolved import ResolvedRun

MIB, GIB = 2**20, 2**30
LEARNER_BYTES = 330 * MIB
"""A learner with an empty pack: interpreter, torch, compiled kernels (shared pages counted by their share)."""
SUPERVISOR_BYTES = 240 * MIB
CUDA_BYTES = 700 * MIB
"""Of a device's memory: the context, and the libraries' work space, of which each of three threads has its own."""
MANY_ENVS = 32
"""Of a policy in one unit: fewer are as fast."""
NEARLY_ALL = 0.9
"""A run that is estimated to need more than this share of what is available is warned about."""


@dataclass(frozen=True)
class Estimate:
    """Memory of a run: of the host, and of each GPU by name."""

    host: int
    devices: Mapping[str, int]
    packs: tuple[PackBytes, ...]
    certain: int
    """Part of the host's memory that is no estimate: it is allocated in any case."""
    certain_of_devices: Mapping[str, int]
    """Likewise of each GPU's."""


def memory_notes(resolved: ResolvedRun, host: HostMemory | None = None) -> list[str]:
    """Warn of a run that is estimated to need more memory than there is, with what would need less.

    host: for tests.
    """
    needed, host = estimate(resolved), host or host_memory()
    notes = []
    if needed.host > NEARLY_ALL * host.available:
        notes.append(
            f"warning: this run needs about {_gib(needed.host)} of memory, and {_gib(host.available)} are available "
            f"({_parts(needed)}): {_remedy(resolved, needed, 'cpu', host.available)}"
        )
    for device, size in needed.devices.items():
        there = _device_bytes(device)
        if size > NEARLY_ALL * there:
            notes.append(
                f"warning: this run needs about {_gib(size)} on {device}, which has {_gib(there)} "
                f"({_parts(needed)}): {_remedy(resolved, needed, device, there)}"
            )
    return notes


def check_memory(resolved: ResolvedRun, host: HostMemory | None = None) -> None:
    """Raise ConfigError if what a run allocates in any case is more than the machine or a GPU has. host: for tests."""
    needed, host = estimate(resolved), host or host_memory()
    if needed.certain > host.total:
        raise ConfigError(
            f"this run cannot fit into memory: it needs {_gib(needed.certain)} of {_gib(host.total)} "
            f"({_parts(needed)}): {_remedy(resolved, needed, 'cpu', host.available)}"
        )
    for device, size in needed.certain_of_devices.items():
        there = _device_bytes(device)
        if size > there:
            raise ConfigError(
                f"this run cannot fit on {device}: it needs {_gib(size)} at least, and {_gib(there)} are there "
                f"({_parts(needed)}): {_remedy(resolved, needed, device, there)}"
            )


def _device_bytes(device: str) -> float:
    """Return the memory of a GPU; unlimited if the plan is for another machine."""
    if not torch.cuda.is_available():
        return math.inf
    return float(torch.cuda.get_device_properties(torch.device(device)).total_memory)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _parts(needed: Estimate) -> str:
    """Name the parts, the largest first."""
    parts = {
        "rollouts": sum(p.rollouts for p in needed.packs),
        "replay": sum(p.replay for p in needed.packs),
        "weights and moments": sum(p.weights + p.parked for p in needed.packs),
        "updates": sum(p.update for p in needed.packs),
        "actors and their environments": sum(p.actors + p.environments + p.mailboxes for p in needed.packs),
    }
    return ", ".join(
        f"{name} {_gib(size)}" for name, size in sorted(parts.items(), key=lambda part: -part[1]) if size
    )


def _remedy(resolved: ResolvedRun, needed: Estimate, device: str, available: float) -> str:
    """Return what to change. available: on this device."""
    plans = resolved.plan.packs
    envs = max(plan.envs_per_policy for plan in plans)
    remedies = []
    if envs > MANY_ENVS:
        remedies.append(f"fewer environments (--envs-per-unit, now {envs})")
    slots = _slots_that_fit(plans, needed, device, available)
    if slots >= len(plans) and slots < sum(plan.slots for plan in plans):
        remedies.append(f"members that take turns (--slots {slots})")
    return "use " + ", ".join([*remedies, "a smaller --learner.batch, or fewer --num-policies"])


def _slots_that_fit(plans: Sequence[PackPlan], needed: Estimate, device: str, available: float) -> int:
    """Return how many slots in all packs would fit on a device; a member without one waits in the host's memory."""
    there = [
        (plan, pack) for plan, pack in zip(plans, needed.packs, strict=True) if device in ("cpu", plan.device)
    ]
    slots = sum(plan.slots for plan, _ in there)
    of_slots = sum(pack.of_slots for _, pack in there)
    parked = there[0][1].state if device == "cpu" else 0
    total = needed.host if device == "cpu" else needed.devices[device]
    fixed = total - of_slots + slots * parked  # all members parked
    fitting = int((NEARLY_ALL * available - fixed) / max(1, of_slots / slots - parked))
    return fitting * len(plans) // len(there)


def estimate(resolved: ResolvedRun) -> Estimate:
    """Estimate the memory of a run."""
    plans = resolved.plan.packs
    packs = tuple(pack_bytes(resolved.config, resolved.spec, plan) for plan in plans)
    host, certain = SUPERVISOR_BYTES + games().host_bytes(resolved.config), 0
    devices: dict[str, int] = {}
    certain_of: dict[str, int] = {}
    for plan, pack in zip(plans, packs, strict=True):
        host += LEARNER_BYTES + pack.parked + pack.mailboxes + pack.actors + pack.environments
        certain += pack.parked + pack.mailboxes
        if plan.device == "cpu":
            host += pack.sampled + pack.weights + pack.update
            certain += pack.sampled + pack.weights
        else:
            on_device = pack.sampled + pack.weights + pack.update + CUDA_BYTES
            devices[plan.device] = devices.get(plan.device, 0) + on_device
            certain_of[plan.device] = certain_of.get(plan.device, 0) + pack.sampled + pack.weights
    return Estimate(host, devices, packs, certain, certain_of)


NEARLY_ALL_ACTORS = 0.9
"""Share of the actors that cores could serve; a plan of fewer is explained."""
MANY_PER_CORE = 10_000
"""More environments on a core are warned about: at 10 us a step each waits a tenth of a second for its turn."""
TURN_ROLLOUTS = 20
"""Turns shorter than this many rollouts waste more than 1/20 of their frames."""


def describe_plan(resolved: ResolvedRun) -> list[str]:
    """Return lines that name the members, actors and threads of each device, and notes."""
    spec, plan, config = resolved.spec, resolved.plan, resolved.config
    resident = sum(pack.slots for pack in plan.packs)
    turns = f" ({resident} resident at a time)" if resident < config.members else ""
    controls = f" and {counted(config.controls, 'control')}" if config.controls else ""
    first_line = (
        f"{config.env}: {counted(config.num_policies, 'policy', 'policies')}{controls}{turns}, "
        f"{config.algo}, {config.mode}; "
        f"{counted(plan.actors, 'actor')}, {counted(plan.environments // spec.seats, 'environment')}"
        f"{f' of {spec.seats} seats' if spec.seats > 1 else ''} on {counted(plan.cpus, 'core')}; "
        f"1 step = {counted(spec.frame_skip, 'frame')}"
    )
    lines = [first_line]
    for number, pack in enumerate(plan.packs):
        steps, asked = pack.batch_rows * config.learner.rollout, config.learner.batch
        wanted = f" ({asked} asked for)" if steps != asked and not plan.sizing.per_unit else ""
        lines.append(
            f"learner {number} on {pack.device}: member{'s' * (len(pack.members) > 1)} {_ids(pack.members)}"
            f"{'' if pack.slots == len(pack.members) else ' in ' + counted(pack.slots, 'slot')}; "
            f"{_sampled_by(pack)} x {counted(pack.rows, 'row')} "
            f"({pack.envs_per_policy} per policy); batch {steps} steps per policy{wanted}; "
            f"{counted(pack.threads, 'thread')}"
        )
    return [*lines, *network_sees(config, spec), *_notes(resolved)]


def describe_comparisons(config: Config) -> list[str]:
    """Return a line that says when members are compared and by which rules; none if they are not."""
    pbt = config.pbt
    if not (controller_entry(config.controller).compares and pbt.enabled and config.num_policies > 1):
        return []
    text = (
        f"members are compared at {max(pbt.start_frames, pbt.period_frames):,} frames each and every "
        f"{pbt.period_frames:,} from there: --controller {config.controller}, --pbt.ready {pbt.ready}, --pbt.exploit "
        f"{pbt.exploit}, --pbt.explore {pbt.explore}"
    )
    return [text]


def _sampled_by(pack: PackPlan) -> str:
    if pack.groups:
        return "1 simulator on the device"
    return f"{counted(pack.actors, 'actor')} x {counted(pack.units_per_actor, 'unit')}"


def describe_values(resolved: ResolvedRun, first: Values) -> list[str]:
    """Return a table of the values that the controller tunes, and a line of those that it does not.

    first: the values of member 0 at the start.
    """
    config, table = resolved.config, resolved.tuned_table()
    changes = config.searches or (config.pbt.enabled and config.controller != "schedule")
    tuned = [spec for spec in table.values() if spec.tuned and changes]
    rest = ", ".join(f"{name} {first[name]:g}" for name, spec in table.items() if spec not in tuned)
    lines = [f"not tuned: {rest}"] if rest else []
    if not tuned:
        return lines
    heads = ("tuned", "member 0", "prior", "mutation bounds", "legal")
    rows = [heads, *(_row(spec, first[spec.name]) for spec in tuned)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if config.pbt.explore == "perturb" and not config.searches:
        drawn = ", ".join(spec.name for spec in tuned if spec.drawn) or "none here"
        shown.append(
            "note: with --pbt.explore perturb the other members start around member 0, but for values with a range of "
            f"your own (--pbt.tune NAME=LOW:HIGH, --pbt.prior), which are drawn from the prior: {drawn}"
        )
    return shown + lines


def _row(spec: HyperSpec, first: float) -> tuple[str, ...]:
    low, high = spec.limits
    legal = f"{low:g}..{'off' if high == OFF else f'{high:g}'}"
    return spec.name, f"{first:g}", str(spec.start), f"{spec.low:g}..{spec.high:g}", legal


def _notes(resolved: ResolvedRun) -> list[str]:
    """Return hints at settings that defeat their purpose."""
    config, notes = (
        resolved.config,
        [
            *(f"note: {note}" for note in resolved.spec.notes),
            *_lag_notes(resolved),
            *_idle_core_notes(resolved),
            *_crowd_notes(resolved),
        ],
    )
    if not resolved.spread:  # else the memory is that of other machines
        notes += memory_notes(resolved)
    if resolved.spec.seats > 1:
        notes.append(opponents().note(config, resolved.plan.packs))
    unroll, rollout = resolved.tuned_table().get("unroll"), config.learner.rollout
    if unroll is not None and unroll.default < rollout and not unroll.tuned:
        notes.append(
            f"note: returns look {unroll.default:.0f} steps ahead (--hypers.unroll), although a rollout has {rollout} "
            f"(--learner.rollout): for longer ones give --hypers.unroll {rollout}, too"
        )
    if config.learner.lr_schedule == "kl-adaptive":
        notes.append(
            "note: --learner.lr-schedule kl-adaptive sets the learning rate in use, so learning_rate is not tuned"
        )
    for more in offered("pbt_rl", "PLAN_NOTES"):
        notes += more(config)
    if controller_entry(config.controller).compares and config.pbt.enabled and config.num_policies > 1:
        notes += filter(None, [_comparison_note(config)])
    if config.searches:
        return notes
    for pack in resolved.plan.packs:
        lost = pack.units * pack.envs_per_policy * config.learner.rollout * resolved.spec.frame_skip
        if pack.slots < len(pack.members) and config.slot_frames < TURN_ROLLOUTS * lost:
            notes.append(
                f"note: a member that leaves its slot loses unfinished rollouts, up to {lost:,} frames, and a turn is "
                f"{config.slot_frames:,}: raise --slot-frames"
            )
            break
    return notes


def _comparison_note(config: Config) -> str:
    """Return a hint at comparisons for which the frames do not suffice, or nothing."""
    first, last = max(config.pbt.start_frames, config.pbt.period_frames), config.train_for_frames
    if first >= last:
        return (
            f"note: PBT compares members first at {first:,} frames each, and this run ends at {last:,}: "
            "lower --pbt.start-frames and --pbt.period-frames to see it at work"
        )
    return controller_entry(config.controller).note(config, config.num_policies, last)


def lag_remedies(resolved: ResolvedRun) -> list[str]:
    """Return options that make rollouts as young as a plan would (see plan/sizes.py); empty if they are."""
    sizing, packs = resolved.plan.sizing, resolved.plan.packs
    pack = _oldest(resolved)
    need = sizing.least_rollouts(pack.units)
    if not sizing.too_old(pack.units, Size(pack.envs_per_policy, pack.units_per_batch)):
        return []
    envs = int(sizing.batch_rows / need) // sizing.seats * sizing.seats
    actors = int(sizing.units_per_rollout * pack.units_per_batch / pack.units_per_actor) * len(packs)
    return [
        f"--learner.batch {need * pack.envs_per_policy * resolved.config.learner.rollout}",
        *([f"--envs-per-unit {envs}"] if envs else []),
        *([f"--actors {actors}"] if actors >= len(packs) else []),
        f"--learner.max-policy-lag {2 * _lag(pack)}",
    ]


def _oldest(resolved: ResolvedRun) -> PackPlan:
    return max(resolved.plan.packs, key=_lag)


def _lag(pack: PackPlan) -> int:
    """Return how many updates old a rollout is when it is learned from."""
    return math.ceil(pack.units / pack.units_per_batch) + LAG_OF_QUEUE


def _lag_notes(resolved: ResolvedRun) -> list[str]:
    """Warn if the user's numbers make rollouts older than a plan would."""
    remedies, pack = lag_remedies(resolved), _oldest(resolved)
    text = (
        f"warning: rollouts will be about {_lag(pack)} updates old when they are learned from, as {pack.units} units "
        f"are in flight and a batch has {pack.units_per_batch} rollout(s) of a unit; those older than "
        f"--learner.max-policy-lag {resolved.config.learner.max_policy_lag} are discarded. Use {' or '.join(remedies)}"
    )
    return [text] if remedies else []


def _idle_core_notes(resolved: ResolvedRun) -> list[str]:
    """Explain why many cores have no actor, or why units beside a GPU are too small for what their actors could do."""
    plan, config = resolved.plan, resolved.config
    idle = plan.actors < NEARLY_ALL_ACTORS * plan.wanted_actors
    rows = min(pack.rows for pack in plan.packs)
    planned = not (config.actors or config.envs_per_unit or plan.sizing.on_policy or plan.sizing.per_unit)
    small = planned and plan.sizing.on_gpu and rows < LEAST_SPARE_ROWS
    if not idle and not small:
        return []
    steps = max(config.learner.batch, *(pack.batch_rows * config.learner.rollout for pack in plan.packs))
    wanted = steps * plan.wanted_actors / plan.actors
    if small:
        units = plan.wanted_actors * config.units_per_actor / len(plan.packs)
        wanted = max(wanted, plan.sizing.large_batch_rows(units) * config.learner.rollout)
    batch = math.ceil(wanted / 1024) * 1024
    why = "rollouts too old or " if config.mode == "async" else ""
    asked = f"batches of {config.learner.batch} steps"
    text = f"{counted(plan.actors, 'actor')}, although the cores could serve {plan.wanted_actors}: more would make "
    text += f"{why}units too small for {asked}; --learner.batch {batch} uses more"
    if not idle:
        text = f"units of {counted(rows, 'row')} are small: their actors wait for the GPU between steps, and more rows "
        text += f"would make rollouts too old for {asked}; --learner.batch {batch} makes them larger"
    return [f"note: {text}"]


def _crowd_notes(resolved: ResolvedRun) -> list[str]:
    """Warn of more environments than cores can step in a reasonable time."""
    plan, envs = resolved.plan, max(pack.envs_per_policy for pack in resolved.plan.packs)
    if plan.environments <= MANY_PER_CORE * plan.cpus:
        return []
    text = (
        f"warning: {plan.environments:,} environments on {plan.cpus} cores: making them takes long, and each is "
        f"stepped rarely; use fewer (--envs-per-unit, now {envs}) or fewer --num-policies"
    )
    return [text]


def _ids(members: tuple[int, ...]) -> str:
    """List all ids, or the first and the last of many."""
    if len(members) <= 16:
        return ", ".join(map(str, members))
    return f"{', '.join(map(str, members[:3]))}, ... {members[-1]} ({len(members)})"
