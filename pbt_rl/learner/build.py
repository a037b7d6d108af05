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
from pbt_rl.algos.normalizers import SMALLEST_PICTURE
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.pack import Pack, Packing
from pbt_rl.algos.parts import Parts
from pbt_rl.algos.rollout import RolloutShape
from pbt_rl.algos.weights import Streams
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import SHAPING, Values
from pbt_rl.envs.base import LAST, EnvSpec
from pbt_rl.errors import ConfigError, require
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoints import NetNames

Arrays = Mapping[str, NDArray[Any]]
"""Arrays of a member's state in host memory, by name."""


@contextmanager
def network_errors() -> Iterator[None]:
    """Convert forward-pass errors of custom network modules into ConfigError."""
    try:
        yield
    except NetworkError as error:
        raise ConfigError(f"--model: {error}") from error


def build_distribution(spec: EnvSpec, model: ModelConfig) -> Distribution:
    """Build the action distribution of an environment."""
    action, tanh = spec.action, model.action_bounds == "tanh"
    return make_distribution(
        action.nvec, len(action.low), low=action.low, high=action.high, units=action.units, tanh=tanh
    )


def build_net(spec: EnvSpec, model: ModelConfig, algorithm: Algorithm | None = None) -> PolicyNet:
    """Build an environment's policy network, including the algorithm's modules.

    Raises ConfigError if the model or the algorithm does not fit the environment.
    """
    for option, value, usual in (
        ("action-std", model.action_std, "free"),
        ("initial-std", model.initial_std, (1.0,)),
        ("action-bounds", model.action_bounds, "clip"),
    ):
        remedy = f"{spec.env_id} has no continuous actions. Leave the option out"
        require(bool(spec.action.low) or value == usual, f"model.{option}", value, remedy)
    free = sum(spec.action.unbounded)
    remedy = (
        f"squashing (tanh) needs bounds, and {free} of {spec.env_id}'s {len(spec.action.low)} continuous actions "
        "lack one. Leave the option out, or give the action space bounds"
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
    """Limit torch to one thread within the context.

    Threads slow down small tensors: on two busy cores, orthogonal initialisation takes ten times the CPU time with two.

    OMP_NUM_THREADS takes precedence, because the user has set it.
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
    """Reset torch's modes and defaults. An environment may have changed them."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    ours = torch.device("cpu") if device.type != "cpu" else nullcontext()  # it slows every operation
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False), ours:
            yield
    finally:
        torch.set_default_dtype(dtype)


def blank_inputs(spec: EnvSpec, state_size: int, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return zeros as network inputs for one step of this many rows."""
    seen = {name: layout.seen for name, layout in obs_layouts(spec).items()}
    obs = {
        name: torch.zeros((1, rows, *shape), dtype=getattr(torch, kind))
        for name, (shape, kind) in seen.items()
    }
    return obs, torch.zeros(rows, state_size), torch.zeros((1, rows), dtype=torch.bool)


def compute_dtype(precision: str, device: torch.device, spec: EnvSpec) -> torch.dtype:
    """Choose bf16 for images if the device is faster with it; otherwise float32."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.bfloat16 if _sees_images(spec) and _is_fast_at_bf16(device) else torch.float32


def _is_fast_at_bf16(device: torch.device) -> bool:
    """Check for a GPU with bf16 or a CPU with fast bf16.

    A fast CPU has AMX, or AVX-512 bf16 products that are not Intel's. Intel's are no faster than float32: on an Emerald
    Rapids Xeon whose cloud hides AMX, a core reaches 87 GFLOPS in bf16 and 145 in float32 (docs/lab/speed.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 - torch has no public functions for these two
        return True
    return bool(torch.cpu._is_avx512_bf16_supported()) and not processor_is("GenuineIntel")  # noqa: SLF001


def _sees_images(spec: EnvSpec) -> bool:
    return any(a.dtype == "uint8" and len(a.shape) >= 2 for a in spec.obs.values())


def sees_pictures(config: Config, spec: EnvSpec) -> bool:
    """Check whether a built-in CNN reads images that are larger than grids of codes."""
    return config.model.encoder in ("auto", *CNNS) and any(
        a.dtype == "uint8" and len(a.shape) >= 2 and min(a.shape[-2:]) >= SMALLEST_PICTURE
        for a in spec.obs.values()
    )


VMAP_ON_CPU = 4
"""From this number of policies on, small networks run faster under vmap on a CPU (docs/lab/speed.md)."""
LOOP_ON_CPU = 4096
"""From this minibatch size per policy on, they run faster one by one, because each keeps the cores busy."""


def passes(config: Config) -> tuple[int, int]:
    """Return the epochs per batch and the minibatches per epoch."""
    return (
        (1, 1)
        if config.algorithm.learns_per_vector_env
        else (config.learner.epochs, config.learner.minibatches)
    )


def minibatch_steps(config: Config, plan: PackPlan) -> int:
    """Return the number of steps per policy in one optimiser step."""
    return plan.batch_rows * config.learner.rollout // passes(config)[1]


def packings(
    config: Config, device: torch.device, spec: EnvSpec, slots: int, steps: int
) -> tuple[Packing, ...]:
    """List the packings to choose from. The first is the default; acceleration may find a faster one.

    steps: see `minibatch_steps`. On a CPU the loop is best for images, which keep the cores busy, and for many steps.
    Otherwise call overhead exceeds arithmetic, and vmap is best. On other devices the candidates are timed, except in
    serial mode, which must be reproducible. Custom modules use the loop, because vmap may not support them.
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
    of_several: tuple[Packing, ...] = ("bmm", "streams", "loop", "vmap") if images else ("vmap", "loop")
    candidates = of_one if slots == 1 else of_several
    return candidates[:1] if config.mode == "serial" else candidates


def packings_of(config: Config, spec: EnvSpec, plan: PackPlan) -> tuple[Packing, ...]:
    """Return `packings` for the pack of a plan."""
    steps = minibatch_steps(config, plan)
    return packings(config, torch.device(plan.device), spec, plan.slots, steps)


def normalized_obs(config: Config, spec: EnvSpec) -> dict[str, int]:
    """Map each observation that a run normalises to its size per row.

    Vectors are normalised except LAST, because a rare action would become a large number. Grids are normalised for
    an MLP, images for a built-in CNN. With an auxiliary loss grids are not, nor are images if it reads pixels (UNREAL).
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
    """Build the pack of a plan. Weights are initialised from `seed` and the member ids.

    holders: member of each slot; default: the first members. values: of each slot; unused in an empty slot. packing:
    default: the first candidate. net: initial weights of all policies, which is faster than separate initialisation.
    streams: see `Pack`.
    """
    device = torch.device(plan.device)
    held = plan.members[: plan.slots] if holders is None else holders
    holding = iter(held)

    def next_net() -> PolicyNet:  # called by the pack once per policy, in order
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
        parts=Parts(plan.parts, max(1, plan.threads // plan.parts)) if plan.parts > 1 else None,
    )


def rollout_shape(pack: Pack, spec: EnvSpec, steps: int, rows: int) -> RolloutShape:
    """Return the shape of a pack's rollouts. rows: per vector env."""
    action = (spec.action.components, getattr(torch, spec.action.dtype))
    return RolloutShape(
        obs_layouts(spec), steps, rows, pack.num_policies, action, pack.state_size, pack.device
    )


def lone_pack(config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> Pack:
    """Build a pack of one policy on the CPU for a plan."""
    alone = replace(plan, members=plan.members[:1], slots=1, device="cpu")
    return build_pack(config, spec, alone, [values], 0)


def net_names(pack: Pack) -> NetNames:
    """Return each parameter's name, offset and shape in the flat vector."""
    layout = pack.weights.layout
    return NetNames(tuple((name, s.start, s.shape) for name, s in layout.places().items()), layout.size)


def drawn_net(config: Config, spec: EnvSpec, seed: int, member: int, generation: int = 0) -> PolicyNet:
    """Initialise a member's weights from its id, whatever its slot.

    The control of member i gets the initial weights and the initial action std of that member.
    """
    words = [seed, config.start_of(member), generation]
    torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
    model = replace(config.model, initial_std=(config.initial_std(member),))
    return build_net(spec, model, config.algorithm)


def fresh_arrays(pack: Pack, net: PolicyNet) -> Arrays:
    """Return an untrained member's state with these weights, in host memory."""
    return {name: x.numpy() for name, x in pack.fresh_state(net).items()}


class Drawing:
    """Weight initialisation on the CPU, identical to that of the learners. plan: of any pack of the run."""

    def __init__(self, config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> None:
        self._config, self._spec, self._plan, self._values = config, spec, plan, values

    @cached_property
    def _pack(self) -> Pack:
        return lone_pack(self._config, self._spec, self._plan, self._values)

    def drawn(self, member: int, generation: int) -> Arrays:
        """Return the initialised state of a member of this generation."""
        return fresh_arrays(
            self._pack, drawn_net(self._config, self._spec, self._config.seed, member, generation)
        )


def update_settings(config: Config, spec: EnvSpec) -> UpdateSettings:
    """Return the options of a config that an update needs."""
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
    """Return the storage layout of each observation array on the device."""
    return {
        name: ObsLayout(a.dtype, a.shape, spec.frame_stack if a.dtype == "uint8" and len(a.shape) == 2 else 1)
        for name, a in spec.obs.items()
    }


@dataclass(frozen=True)
class LearnerSetup:
    """First message to a learner. Descriptors, in the fields `..._fd` and `..._fds`, are inherited."""

    config: Config
    spec: EnvSpec
    plan: PackPlan
    seed: int
    slots: tuple[Load | None, ...]
    """Initial member of each slot. Weights that are not in the pool are initialised."""
    unheld_values: Values
    """Placeholder values for an empty slot."""
    mailbox_fds: tuple[int, ...]
    """One per vector env, actor by actor."""
    wake_fds: tuple[int, ...]
    """One per vector env: the eventfd of its actor."""
    ready_fd: int
    shaping_fd: int
    layout: ArrayLayout
    """Layout of a member's arrays in the pool."""
    pool_fd: int
    heartbeat_fd: int
    continued: Mapping[str, Any] | None = None
    """Content of LearnerSaved to resume from."""
    seconds: float = 0.0
    """Training seconds before this learner started."""
    without: tuple[Packing, ...] = ()
    """Packings whose CUDA graph capture broke this learner's process before."""
    connection_fd: int = -1
    """Existing connection, if the process has restarted itself."""

    @property
    def fds(self) -> list[int]:
        """Return all descriptors that the process inherits."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd, self.pool_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single) if fd >= 0})
