"""Construction of networks, packs and update settings from a config."""

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
from pbt_rl.actors.state_pool import ArrayLayout
from pbt_rl.algos.algorithm import Algorithm, UpdateSettings
from pbt_rl.algos.distributions import Distribution, make_distribution
from pbt_rl.algos.encoders import CNNS, NetworkError, is_grid, is_image
from pbt_rl.algos.kernels import processor_is
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
from pbt_rl.errors import ConfigError, algorithm_code, place_of, require
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoints import NetNames

Arrays = Mapping[str, NDArray[Any]]
"""Arrays of a member's state in host memory, by name."""


@contextmanager
def network_errors() -> Iterator[None]:
    """Convert errors of the user's code within the context to ConfigError.

    These are: NetworkError of custom modules, and exits (such as `sys.exit`) in custom modules or losses.
    """
    try:
        yield
    except NetworkError as error:
        raise ConfigError(f"--model: {error}") from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        exits = f"a loss or a module raised {type(error).__name__}{place_of(error)}: {error}"
        raise ConfigError(f"--algo: {exits}") from error


def build_distribution(spec: EnvSpec, model: ModelConfig) -> Distribution:
    """Build the action distribution of an environment. `model.action_bounds` selects clipping or tanh."""
    action, tanh = spec.action, model.action_bounds == "tanh"
    return make_distribution(
        action.nvec, len(action.low), low=action.low, high=action.high, units=action.units, tanh=tanh
    )


def build_net(spec: EnvSpec, model: ModelConfig, algorithm: Algorithm | None = None) -> PolicyNet:
    """Build a policy network for an environment.

    Raises ConfigError if the model or the algorithm does not suit the environment.

    algorithm: adds its modules to the network, for example auxiliary heads. None: add no modules.
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
    except RuntimeError as error:  # of torch, for an array that does not fit into memory
        raise ConfigError(f"--model: the network cannot be built: {str(error).splitlines()[0]}") from error
    if algorithm is None:
        return net
    stacks = {name: layout.stack for name, layout in layouts.items()}
    inputs = NetInputs(seen, stacks, spec.action.nvec, len(spec.action.low), model.core_size)
    with algorithm_code(f"--algo cannot be used with {spec.env_id}", "network"):
        whole = algorithm.network(net, inputs)
        if not isinstance(whole, PolicyNet):
            raise ValueError(  # noqa: TRY004 - the user's function is wrong, not our call
                f"network returned {type(whole).__name__}: return the extended PolicyNet"
            )
        return whole


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread within the context.

    Small tensors are slower with several threads: on two busy cores, orthogonal initialisation takes ten times the CPU
    time. If the user has set OMP_NUM_THREADS, the number of threads stays unchanged.
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
    """Reset modes and defaults of torch within the context, because an environment may have changed them.

    These are: default dtype, default device, inference mode, and autocast on the CPU.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    # Enter a device context only if the default device is not the CPU, because the context slows every operation.
    ours = torch.device("cpu") if device.type != "cpu" else nullcontext()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False), ours:
            yield
    finally:
        torch.set_default_dtype(dtype)


def blank_inputs(spec: EnvSpec, state_size: int, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return zeros as network inputs for one step, on the CPU.

    The results are observations (name -> [1, rows, ...]), recurrent state [rows, state_size] float32, and episode
    starts [1, rows] bool.
    """
    seen = {name: layout.seen for name, layout in obs_layouts(spec).items()}
    obs = {
        name: torch.zeros((1, rows, *shape), dtype=getattr(torch, kind))
        for name, (shape, kind) in seen.items()
    }
    return obs, torch.zeros(rows, state_size), torch.zeros((1, rows), dtype=torch.bool)


def compute_dtype(precision: str, device: torch.device, spec: EnvSpec) -> torch.dtype:
    """Return the dtype in which networks are computed.

    precision: `bf16`, `float32`, or `auto` (bf16 if there are images and the device is fast at bf16, else float32).
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.bfloat16 if _sees_images(spec) and _is_fast_at_bf16(device) else torch.float32


def _is_fast_at_bf16(device: torch.device) -> bool:
    """True if a device computes faster in bf16 than in float32.

    This is true of GPUs with bf16, CPUs with AMX, and non-Intel CPUs with AVX-512 bf16. Intel's AVX-512 bf16 is slow: a
    core of an Emerald Rapids Xeon without AMX reaches 87 GFLOPS in bf16 and 145 in float32 (docs/lab/speed.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 - torch has no public functions for these two
        return True
    return bool(torch.cpu._is_avx512_bf16_supported()) and not processor_is("GenuineIntel")  # noqa: SLF001


def _sees_images(spec: EnvSpec) -> bool:
    return any(a.dtype == "uint8" and len(a.shape) >= 2 for a in spec.obs.values())


def sees_pictures(config: Config, spec: EnvSpec) -> bool:
    """True if a built-in CNN encodes an image whose sides have at least SMALLEST_PICTURE pixels.

    Smaller images usually contain codes of objects (as in MiniGrid), and not colours.
    """
    return config.model.encoder in ("auto", *CNNS) and any(
        a.dtype == "uint8" and len(a.shape) >= 2 and min(a.shape[-2:]) >= SMALLEST_PICTURE
        for a in spec.obs.values()
    )


VMAP_ON_CPU = 3
"""Number of policies from which vmap is faster than `loop` for small networks on a CPU (docs/lab/speed.md)."""
LOOP_ON_CPU = 4096
"""Minibatch size (steps of one policy) from which `loop` is faster than vmap for small networks on a CPU."""


def passes(config: Config) -> tuple[int, int]:
    """Return the epochs per batch and the minibatches per epoch."""
    if config.algorithm.learns_per_vector_env:
        return 1, 1
    return config.learner.epochs, config.learner.minibatches


def minibatch_steps(config: Config, plan: PackPlan) -> int:
    """Return the number of steps per policy in one optimiser step."""
    return plan.batch_rows * config.learner.rollout // passes(config)[1]


def packings(
    config: Config, device: torch.device, spec: EnvSpec, slots: int, steps: int
) -> tuple[Packing, ...]:
    """List the packings (ways to compute the policies of a pack) to choose from, default first.

        --learner.packing is not auto    this packing only
        custom modules                   loop, because vmap may not support them
        CPU, few slots                   loop, because vmap is faster only from VMAP_ON_CPU policies on
        CPU, images or many steps        loop, because one policy keeps the cores busy
        CPU, otherwise                   vmap, because function calls take longer than the arithmetic
        other devices                    several; the run times them at its start and uses the fastest. For a single
                                         policy without images: loop
        other devices, serial mode       the default only, because runs must be reproducible

    slots: number of policies in the pack. steps: steps of each policy in one optimiser step.
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
    if images and config.mode == "async":  # other modes have one stream
        of_several = ("bmm", "streams", "loop", "vmap")
    candidates = of_one if slots == 1 else of_several
    return candidates[:1] if config.mode == "serial" else candidates


def packings_of(config: Config, spec: EnvSpec, plan: PackPlan) -> tuple[Packing, ...]:
    """List the packings to choose from for the pack that `plan` describes, default first."""
    steps = minibatch_steps(config, plan)
    return packings(config, torch.device(plan.device), spec, plan.slots, steps)


def normalized_obs(config: Config, spec: EnvSpec) -> dict[str, int]:
    """Map each observation that a run normalises to its number of elements per row.

    The table lists conditions for each kind of observation. Vectors and grids (small images of object codes) also need
    --learner.normalize-observations, and images also need --learner.normalize-images:

        vectors     normalised, except LAST (last action and reward), in which a rare action would become a large number
        grids       normalised for an MLP, unless there is an auxiliary loss; for a built-in CNN like images
        images      normalised for a built-in CNN, unless an auxiliary loss reads pixels (UNREAL)
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
    slot_members: Sequence[int | None] | None = None,
    packing: Packing | None = None,
    net: PolicyNet | None = None,
    streams: Streams | None = None,
) -> Pack:
    """Build the pack that `plan` describes. Weights are initialised from `seed` and the member ids.

    values: values of each slot. An empty slot needs values, but does not use them.
    slot_members: member of each slot. By default, the slots get the first members of the plan.
    packing: by default the first of `packings_of`.
    net: network whose weights all policies start with. Copying a network is faster than separate initialisation.
    streams: CUDA streams of the pack. By default, all work uses one stream.
    """
    device = torch.device(plan.device)
    held = plan.members[: plan.slots] if slot_members is None else slot_members
    holding = iter(held)

    def next_net() -> PolicyNet:  # called once per policy, in order
        if net is not None:
            return copy.deepcopy(net)
        member = next(holding, None)
        if member is None:
            return build_net(spec, config.model, config.algorithm)
        return initialised_net(config, spec, seed, member)

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
    """Return the shape of a pack's rollouts. steps: steps of a rollout. rows: rows of a vector env, of all slots."""
    action = (spec.action.components, getattr(torch, spec.action.dtype))
    return RolloutShape(
        obs_layouts(spec), steps, rows, pack.num_policies, action, pack.state_size, pack.device
    )


def lone_pack(config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> Pack:
    """Build the pack that `plan` describes, but with a single policy and on the CPU."""
    alone = replace(plan, members=plan.members[:1], slots=1, device="cpu")
    return build_pack(config, spec, alone, [values], 0)


def net_names(pack: Pack) -> NetNames:
    """Return name, offset (in elements) and shape of each parameter in the flat vector of a member's weights."""
    layout = pack.weights.layout
    return NetNames(tuple((name, s.start, s.shape) for name, s in layout.places().items()), layout.size)


def initialised_net(config: Config, spec: EnvSpec, seed: int, member: int, generation: int = 0) -> PolicyNet:
    """Build a member's network, with weights initialised from `seed`, the member id and the generation.

    Each control starts with the weights and action std of one member of the population (`Config.start_of`).
    This function sets the seed of torch's global generator.
    """
    words = [seed, config.start_of(member), generation]
    torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
    model = replace(config.model, initial_std=(config.initial_std(member),))
    return build_net(spec, model, config.algorithm)


def initialised_arrays(pack: Pack, net: PolicyNet) -> Arrays:
    """Return the state of an untrained member with the weights of `net`, in host memory."""
    return {name: x.numpy() for name, x in pack.fresh_state(net).items()}


class CpuInitialiser:
    """Initialiser of members' states on the CPU. A learner initialises a member to the same state.

    plan: plan of any pack of the run. values: values of any member. A pack needs them, but the states do not depend on
    them.
    """

    def __init__(self, config: Config, spec: EnvSpec, plan: PackPlan, values: Values) -> None:
        self._config, self._spec, self._plan, self._values = config, spec, plan, values

    @cached_property
    def _pack(self) -> Pack:
        return lone_pack(self._config, self._spec, self._plan, self._values)

    def initialised(self, member: int, generation: int) -> Arrays:
        """Return the state of an untrained member of this generation. The state of torch's generator is kept.

        In serial mode, learners of this process draw from the generator, for example for dropout.
        """
        with torch.random.fork_rng(devices=[]):
            net = initialised_net(self._config, self._spec, self._config.seed, member, generation)
            return initialised_arrays(self._pack, net)


def update_settings(config: Config, spec: EnvSpec) -> UpdateSettings:
    """Select the options that an update needs."""
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
    """Return the storage layout of each observation on the device."""
    return {
        name: ObsLayout(a.dtype, a.shape, spec.frame_stack if a.dtype == "uint8" and len(a.shape) == 2 else 1)
        for name, a in spec.obs.items()
    }


@dataclass(frozen=True)
class LearnerSetup:
    """First message to a learner. The process inherits the file descriptors in the fields `..._fd` and `..._fds`."""

    config: Config
    spec: EnvSpec
    plan: PackPlan
    seed: int
    slots: tuple[Load | None, ...]
    """Initial member of each slot. None: empty slot."""
    unheld_values: Values
    """Placeholder values of empty slots."""
    mailbox_fds: tuple[int, ...]
    """Mailbox of each vector env, actor by actor."""
    wake_fds: tuple[int, ...]
    """Eventfd of each vector env's actor."""
    ready_fd: int
    """Eventfd that the actors write when a step is in a mailbox."""
    shaping_fd: int
    """Shared memory of the pack's `ShapingTable`."""
    layout: ArrayLayout
    """Layout of a member's arrays in the state pool."""
    pool_fd: int
    """Shared memory of the `StatePool`."""
    heartbeat_fd: int
    """Shared memory of the learner's `Heartbeat`."""
    full_frames: int
    """`Config.full_frames`, computed in the parent, because a learner does not load the user's controller."""
    schedule_frames: int
    """`Config.schedule_frames`, likewise."""
    continued: Mapping[str, Any] | None = None
    """Content of the LearnerSaved message to resume from."""
    seconds: float = 0.0
    """Training seconds before this learner started."""
    without: tuple[Packing, ...] = ()
    """Packings whose CUDA graph capture broke an earlier process of this learner."""
    connection_fd: int = -1
    """Connection to the parent if the process restarted itself, otherwise -1."""

    @property
    def fds(self) -> list[int]:
        """All descriptors that the process inherits, except `connection_fd`."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd, self.pool_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single) if fd >= 0})
