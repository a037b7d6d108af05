"""Build networks, packs and update settings from a config."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.actors.messages import Load
from pbt_rl.actors.store import ArrayLayout
from pbt_rl.algos.algorithm import Algorithm, UpdateSettings
from pbt_rl.algos.device import processor_is
from pbt_rl.algos.distributions import Distribution, make_distribution
from pbt_rl.algos.encoders import CNNS, NetworkError, is_grid, is_image
from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.algos.models import NetInputs, PolicyNet, make_model
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.pack import Pack, Packing
from pbt_rl.algos.rollout import RolloutShape
from pbt_rl.algos.weights import Streams
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.envs.base import LAST, EnvSpec
from pbt_rl.errors import ConfigError, require
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoints import NetNames

Arrays = Mapping[str, NDArray[Any]]
"""Parts of a member's state in host memory."""


@contextmanager
def network_errors() -> Iterator[None]:
    """Raise ConfigError for what a user's part of a network raises in a forward inside."""
    try:
        yield
    except NetworkError as error:
        raise ConfigError(f"--model: {error}") from error


def build_distribution(spec: EnvSpec, model: ModelConfig) -> Distribution:
    """Return the distribution of an environment's actions."""
    action, tanh = spec.action, model.action_bounds == "tanh"
    return make_distribution(
        action.nvec, len(action.low), low=action.low, high=action.high, units=action.units, tanh=tanh
    )


def build_net(spec: EnvSpec, model: ModelConfig, algorithm: Algorithm | None = None) -> PolicyNet:
    """Make the policy network of an environment, with what the algorithm adds to it.

    Raises ConfigError if the model or the algorithm cannot be used with it.
    """
    for option, value, usual in (
        ("deviation", model.deviation, "free"),
        ("initial-deviation", model.initial_deviation, (1.0,)),
        ("action-bounds", model.action_bounds, "clip"),
    ):
        remedy = f"it is for continuous actions, and {spec.env_id} has none: leave it out"
        require(bool(spec.action.low) or value == usual, f"model.{option}", value, remedy)
    free = sum(spec.action.unbounded)
    remedy = (
        f"it bends actions into their bounds, and {free} of {spec.env_id}'s {len(spec.action.low)} continuous actions "
        "lack one: leave it out, or give the action space bounds"
    )
    require(model.action_bounds == "clip" or not free, "model.action-bounds", model.action_bounds, remedy)
    layouts = obs_layouts(spec)
    seen = {name: layout.seen for name, layout in layouts.items()}
    try:
        net = make_model(
            seen,
            build_distribution(spec, model).param_size,
            model,
            continuous=len(spec.action.low),
            critic_only=spec.critic,
            nvec=spec.action.nvec,
        )
    except ValueError as error:
        raise ConfigError(f"--model: {error}") from error
    if algorithm is None:
        return net
    stacks = {name: layout.stack for name, layout in layouts.items()}
    try:
        return algorithm.network(
            net, NetInputs(seen, stacks, spec.action.nvec, len(spec.action.low), model.core_size)
        )
    except ValueError as error:
        raise ConfigError(f"--algo cannot be used with {spec.env_id}: {error}") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread inside.

    For the few rows of an evaluation, or to draw one network's weights, more of them wait for each other: on two busy
    cores orthogonal weights take ten times the CPU time with two.

    OMP_NUM_THREADS, if it is set, is the user's choice.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_torch() -> Iterator[None]:
    """Be without modes and defaults of torch inside, which an environment in this process may have set for itself."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    ours = torch.device("cpu") if device.type != "cpu" else nullcontext()  # a device costs at every operation
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False), ours:
            yield
    finally:
        torch.set_default_dtype(dtype)


def blank_inputs(spec: EnvSpec, state_size: int, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return zeros as a network's arguments for one step of so many rows."""
    seen = {name: layout.seen for name, layout in obs_layouts(spec).items()}
    obs = {
        name: torch.zeros((1, rows, *shape), dtype=getattr(torch, kind))
        for name, (shape, kind) in seen.items()
    }
    return obs, torch.zeros(rows, state_size), torch.zeros((1, rows), dtype=torch.bool)


def compute_dtype(precision: str, device: torch.device, spec: EnvSpec) -> torch.dtype:
    """Choose bf16 if it is faster: for images, on a device that multiplies bf16 faster than float32."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.bfloat16 if _sees_images(spec) and _is_fast_at_bf16(device) else torch.float32


def _is_fast_at_bf16(device: torch.device) -> bool:
    """Say whether a GPU has bf16, or this processor AMX or AVX-512's bf16 products in a kind that gains by them.

    Intel's compute them no faster than float32: where a cloud hides AMX, an Emerald Rapids Xeon has 87 GFLOPS a
    core in bf16 and 145 in float32 (docs/lab/speed.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 - torch has no public functions for these two
        return True
    return bool(torch.cpu._is_avx512_bf16_supported()) and not processor_is("GenuineIntel")  # noqa: SLF001


def _sees_images(spec: EnvSpec) -> bool:
    return any(a.dtype == "uint8" and len(a.shape) >= 2 for a in spec.obs.values())


VMAP_ON_CPU = 4
"""From this number of policies on, small networks are faster together on a CPU (docs/lab/speed.md)."""
LOOP_ON_CPU = 4096
"""But not if each policy has so many steps in a minibatch: they keep the cores busy, and are faster one by one."""


def passes(config: Config) -> tuple[int, int]:
    """Return the epochs of a batch, and the minibatches of each."""
    return (1, 1) if config.algorithm.learns_per_unit else (config.learner.epochs, config.learner.minibatches)


def minibatch_steps(config: Config, plan: PackPlan) -> int:
    """Return the steps of each policy in one optimiser step."""
    return plan.batch_rows * config.learner.rollout // passes(config)[1]


def packings(
    config: Config, device: torch.device, spec: EnvSpec, slots: int, steps: int
) -> tuple[Packing, ...]:
    """Return how a pack may compute its policies; of several the first, unless an acceleration finds a faster one.

    steps: see `minibatch_steps`. On a CPU images alone keep the cores busy, while for vectors the calls cost more than
    the arithmetic, unless steps are many. Elsewhere it is measured, but not for a run that has to be the same every
    time. A part of the user's own may do what vmap cannot,
    so its network is computed policy by policy.
    """
    if config.learner.packing != "auto":
        return (config.learner.packing,)
    if config.model.own_parts:
        return ("loop",)
    images = _sees_images(spec)
    if device.type == "cpu":
        together = not images and slots >= VMAP_ON_CPU and steps < LOOP_ON_CPU
        return ("vmap",) if together else ("loop",)
    of_one: tuple[Packing, ...] = ("bmm", "loop") if images else ("loop",)
    of_several: tuple[Packing, ...] = ("bmm", "loop", "vmap") if images else ("vmap", "loop")
    candidates = of_one if slots == 1 else of_several
    return candidates[:1] if config.mode == "serial" else candidates


def packings_of(config: Config, spec: EnvSpec, plan: PackPlan) -> tuple[Packing, ...]:
    """Return `packings` of a plan's pack."""
    steps = minibatch_steps(config, plan)
    return packings(config, torch.device(plan.device), spec, plan.slots, steps)


def normalized_obs(config: Config, spec: EnvSpec) -> dict[str, int]:
    """Return the observations that a run normalises -> numbers in a row.

    Vectors, but not LAST: a rare action would become a large number; and grids that an MLP reads. Images that a
    convolution of ours reads. No picture if the algorithm has an auxiliary loss, which may be of the pixels themselves
    (UNREAL's).
    """
    learner = config.learner
    auxiliary = config.algorithm.auxiliary
    reads_pixels = auxiliary is not None and auxiliary.reads_pixels
    convolved = config.model.encoder in ("auto", *CNNS) and not reads_pixels
    sizes = {}
    for name, layout in obs_layouts(spec).items():
        shape, dtype = layout.seen
        vector = dtype == "float32" and name != LAST
        image = convolved and is_image(shape, dtype)
        grid = config.model.encoder == "mlp" and config.algorithm.auxiliary is None and is_grid(shape, dtype)
        numbers = vector or grid
        if (numbers and learner.normalize_observations) or (image and learner.normalize_images):
            sizes[name] = prod(shape)
    return sizes


def build_pack(
    config: Config,
    spec: EnvSpec,
    plan: PackPlan,
    values: Sequence[Values],
    seed: int,
    holders: Sequence[int | None] | None = None,
    packing: Packing | None = None,
    net: PolicyNet | None = None,
    streams: Streams | None = None,
) -> Pack:
    """Make the pack of a plan; the weights are drawn by `seed` and the members' ids.

    holders: member of each slot; default: the first members. values: of each slot, which nothing reads in a slot
    without a holder. packing: default: the first that comes into question. net: every policy begins with these weights
    instead, which is faster than drawing them. streams: see `Pack`.
    """
    device = torch.device(plan.device)
    held = plan.members[: plan.slots] if holders is None else holders
    holding = iter(held)

    def next_net() -> PolicyNet:  # the pack makes one per policy, in order
        if net is not None:
            return copy.deepcopy(net)
        member = next(holding, None)
        if member is None:
            return build_net(spec, config.model, config.algorithm)
        return drawn_net(config, spec, seed, member)

    hyper_names = [k for k in values[0] if not k.startswith(SHAPING)]
    return Pack(
        next_net,
        plan.slots,
        {name: [v[name] for v in values] for name in hyper_names},
        device=device,
        compute_dtype=compute_dtype(config.learner.precision, device, spec),
        packing=packing or packings_of(config, spec, plan)[0],
        optimizer=config.algorithm.optimizer,
        normalized_obs=normalized_obs(config, spec),
        normalize_returns=config.learner.normalize_returns,
        streams=streams,
    )


def rollout_shape(pack: Pack, spec: EnvSpec, steps: int, rows: int) -> RolloutShape:
    """Return what the rollouts of a pack are like. rows: of a unit."""
    action = (spec.action.components, getattr(torch, spec.action.dtype))
    return RolloutShape(
        obs_layouts(spec), steps, rows, pack.num_policies, action, pack.state_size, pack.device
    )


def lone_pack(config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> Pack:
    """Make a pack of one policy on the CPU, with the network of a plan's."""
    alone = replace(plan, members=plan.members[:1], slots=1, device="cpu")
    return build_pack(config, spec, alone, [values], 0)


def net_names(pack: Pack) -> NetNames:
    """Return where each parameter of a pack's networks lies in a member's flat vector."""
    layout = pack.weights.layout
    return NetNames(tuple((name, s.start, s.shape) for name, s in layout.places().items()), layout.size)


def drawn_net(config: Config, spec: EnvSpec, seed: int, member: int, generation: int = 0) -> PolicyNet:
    """Initialise the weights of a member by its id, not by when or in which slot it begins.

    Control i begins with the weights and the action deviation of member i.
    """
    words = [seed, config.start_of(member), generation]
    torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
    model = replace(config.model, initial_deviation=(config.initial_deviation(member),))
    return build_net(spec, model, config.algorithm)


def fresh_arrays(pack: Pack, net: PolicyNet) -> Arrays:
    """Return the state of a member that has these weights and has learned nothing, in host memory."""
    return {name: x.numpy() for name, x in pack.fresh_state(net).items()}


class Drawing:
    """Draws weights as the learners of a run do, on the CPU. plan: of any of its packs."""

    def __init__(self, config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> None:
        self._config, self._spec, self._plan, self._values = config, spec, plan, values

    @cached_property
    def _pack(self) -> Pack:
        return lone_pack(self._config, self._spec, self._plan, self._values)

    def drawn(self, member: int, generation: int) -> Arrays:
        """Return the state that a member of this generation is given if its weights are drawn."""
        return fresh_arrays(
            self._pack, drawn_net(self._config, self._spec, self._config.seed, member, generation)
        )


def update_settings(config: Config, spec: EnvSpec) -> UpdateSettings:
    """Return the part of a config that an update needs."""
    learner, (epochs, minibatches) = config.learner, passes(config)
    return UpdateSettings(
        algorithm=config.algorithm,
        epochs=epochs,
        minibatches=minibatches,
        use_vtrace=config.uses_vtrace,
        normalize_advantage=learner.normalize_advantage,
        lr_schedule_kl=learner.lr_schedule_kl if learner.lr_schedule == "kl-adaptive" else None,
        target_kl=learner.target_kl or None,
        distribution=build_distribution(spec, config.model),
        proximal=config.clips_around_batch,
        off_policy=config.mode == "async",
    )


def obs_layouts(spec: EnvSpec) -> dict[str, ObsLayout]:
    """Return how each observation array of an environment is stored on the device."""
    return {
        name: ObsLayout(a.dtype, a.shape, spec.frame_stack if a.dtype == "uint8" and len(a.shape) == 2 else 1)
        for name, a in spec.obs.items()
    }


@dataclass(frozen=True)
class LearnerSetup:
    """The first message to a learner. Descriptors, in the fields `..._fd` and `..._fds`, are inherited."""

    config: Config
    spec: EnvSpec
    plan: PackPlan
    seed: int
    slots: tuple[Load | None, ...]
    """What each slot holds at the start. Weights that do not lie in the pool are drawn."""
    unheld_values: Values
    """What a slot without a member is built with; nothing reads it."""
    mailbox_fds: tuple[int, ...]
    """One per unit, actor by actor."""
    wake_fds: tuple[int, ...]
    """One per unit: the eventfd of its actor."""
    ready_fd: int
    shaping_fd: int
    layout: ArrayLayout
    """Of a member's arrays, in the pool."""
    pool_fd: int
    heartbeat_fd: int
    continued: Mapping[str, Any] | None = None
    """What LearnerSaved said of this learner, to continue from."""
    seconds: float = 0.0
    """Seconds of training before this learner began."""
    without: tuple[Packing, ...] = ()
    """Packings that broke when this learner tried them."""
    connection_fd: int = -1
    """The connection to go on with, if the process has begun again."""

    @property
    def fds(self) -> list[int]:
        """Return all descriptors, for the process to inherit."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd, self.pool_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single) if fd >= 0})
