"""Small packs, batches of made-up numbers, and one update, for the tests of this room.

P policies, T steps, K rollouts of R = P * b rows. Policy p of a batch holds what `numbers(..., p)` gives, whatever
the pack's size: so a policy meets the same data in a pack and alone.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from pbt_rl.algos.algorithm import UpdateSettings
from pbt_rl.algos.batch import Batch, make_batch
from pbt_rl.algos.distributions import Distribution, make_distribution
from pbt_rl.algos.lookup import load
from pbt_rl.algos.observations import ObsLayout
from pbt_rl.algos.optim import ADAM
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import Rollout, RolloutShape
from pbt_rl.algos.update import ACTIVE, CurrentSlots, Updater
from tests.helpers.nets import made_net

CPU = torch.device("cpu")
T, K, ENVS = 8, 2, 3
HYPERS = {
    "learning_rate": 3e-3,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "clip_ratio": 0.1,
    "clip_value": 0.2,
    "kl_coef": 0.0,
    "max_grad_norm": 0.5,
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "rmsprop_alpha": 0.95,
    "vtrace_rho": 1.0,
    "vtrace_c": 1.0,
    "unroll": 8.0,
}
VECTOR = ObsLayout("float32", (4,))
FRAMES = ObsLayout("uint8", (36, 36), 4)
DISCRETE = make_distribution((3,), 0)
MULTI_DISCRETE = make_distribution((3, 2), 0)
GAUSSIAN = make_distribution((), 2)
TANH = make_distribution((), 2, low=(-1.0, 0.0), high=(1.0, 5.0), tanh=True)
HYBRID = make_distribution((3,), 2, low=(-1.0, -1.0), high=(1.0, 1.0))


def make_pack(
    hypers: list[dict[str, float]],
    *,
    packing="loop",
    algo="appo",
    layout: ObsLayout = VECTOR,
    distribution: Distribution = DISCRETE,
    core="none",
    dtype=torch.float32,
    normalize_obs=False,
    normalize_returns=True,
    seed=0,
    optimizer=None,
    network=lambda net: net,
    model=None,
    parts=None,
) -> Pack:
    """model: options of `made_net`, over those that are usual here."""
    torch.manual_seed(seed)
    options = {"hidden": 16, "layers": 1, "core": core, "core_size": 8} | (model or {})
    continuous = {GAUSSIAN: 2, HYBRID: 2, TANH: 2}.get(distribution, 0)
    size = distribution.param_size
    return pack_of(
        lambda: network(made_net({"obs": layout.seen}, size, continuous=continuous, **options)),
        hypers,
        packing=packing,
        dtype=dtype,
        optimizer=optimizer or load(algo).optimizer,
        normalized_obs={"obs": 4} if normalize_obs else {},
        normalize_returns=normalize_returns,
        parts=parts,
    )


def pack_of(
    make_net,
    hypers,
    *,
    packing,
    dtype,
    optimizer=ADAM,
    normalized_obs=None,
    normalize_returns=True,
    parts=None,
) -> Pack:
    """A pack of these networks. hypers: of each policy."""
    return Pack(
        make_net,
        len(hypers),
        {name: [h[name] for h in hypers] for name in hypers[0]},
        device=CPU,
        compute_dtype=dtype,
        packing=packing,
        optimizer=optimizer,
        normalized_obs=normalized_obs or {},
        normalize_returns=normalize_returns,
        parts=parts,
    )


def settings(algo="appo", **changes) -> UpdateSettings:
    values = {
        "algorithm": load(algo),
        "epochs": 2,
        "minibatches": 1,
        "use_vtrace": False,
        "normalize_advantage": True,
        "lr_schedule_kl": None,
        "target_kl": None,
        "distribution": DISCRETE,
    }
    return UpdateSettings(**(values | changes))


def fill(rollout: Rollout, policies: Iterable[int], distribution: Distribution, seed: int) -> None:
    """Write made-up but plausible data: an episode ends by a terminal state, one by a limit, one goes on."""
    envs = rollout.rows // len(list(policies))
    for slot, policy in enumerate(policies):
        rng = np.random.default_rng((seed, policy))
        rows = slice(slot * envs, (slot + 1) * envs)

        def put(tensor: torch.Tensor, array: np.ndarray, rows: slice = rows) -> None:
            tensor[:, rows] = torch.from_numpy(array).to(tensor.dtype)

        for obs in rollout.obs.values():
            shape = (obs.shape[0], envs, *obs.shape[2:])
            put(obs, rng.integers(0, 256, shape) if obs.dtype == torch.uint8 else rng.normal(size=shape))
        params = torch.from_numpy(rng.normal(size=(T, envs, distribution.param_size))).float() * 0.3
        action, log_prob = distribution.sample(params, torch.Generator().manual_seed(int(rng.integers(99))))
        rollout.action[:, rows], rollout.log_prob[:, rows] = action, log_prob
        put(rollout.value, rng.normal(size=(T + 1, envs)))
        rollout.state[rows] = torch.from_numpy(rng.normal(size=(envs, rollout.state.shape[1]))).float() * 0.5
        rollout.reward[:, rows] = rng.normal(size=(T, envs))
        rollout.terminated[:, rows] = rollout.truncated[:, rows] = rollout.first[:, rows] = False
        start = slot * envs
        rollout.terminated[2, start] = rollout.first[4, start] = True
        rollout.truncated[4, start + 1] = rollout.first[6, start + 1] = True
        rollout.first[0, start] = True


def make_rollouts(
    policies: list[int], *, layout=VECTOR, distribution=DISCRETE, state_size=0, seed=0, k=K
) -> list[Rollout]:
    dtype = torch.float32 if distribution in (GAUSSIAN, TANH, HYBRID) else torch.int32
    columns = {DISCRETE: 1, MULTI_DISCRETE: 2, GAUSSIAN: 2, TANH: 2, HYBRID: 3}[distribution]
    rollouts = []
    for number in range(k):
        rows = len(policies) * ENVS
        sizes = (rows, len(policies), (columns, dtype), state_size, CPU)
        rollout = Rollout(RolloutShape({"obs": layout}, T, *sizes))
        fill(rollout, policies, distribution, seed * 100 + number)
        rollouts.append(rollout)
    return rollouts


def batch_of(rollouts: list[Rollout], policies: int, usable_PK=None) -> Batch:
    usable = np.ones((policies, len(rollouts)), np.bool_) if usable_PK is None else np.array(usable_PK)
    return make_batch(rollouts, policies, usable, CPU)


class StepStats(NamedTuple):
    """Statistics of one optimiser step of these slots: name -> [G]."""

    slots: tuple[int, ...]
    values: dict[str, torch.Tensor]


def update(
    pack: Pack, batch: Batch, s: UpdateSettings, *, current=None, factor=1.0, seed=0
) -> Iterator[StepStats]:
    """One update, which pauses after each optimiser step. current: CurrentSlots; all by default."""
    current = CurrentSlots(pack.num_policies, CPU) if current is None else current
    updater = Updater(pack, s, current)
    generator = torch.Generator().manual_seed(seed)
    updater.begin_batch(batch, factor)
    prepared = (updater.targets(group, batch, generator) for group in pack.groups())
    for _ in (slots for group in prepared for slots in updater.steps(group)):
        (taken,) = updater.take_statistics()
        values = dict(zip(taken.names, torch.from_numpy(taken.values_SGV[0]).T, strict=True))
        del values[ACTIVE]
        yield StepStats(taken.slots, values)


def learn(pack: Pack, batch: Batch, s: UpdateSettings, **options) -> list[StepStats]:
    """A whole update."""
    return list(update(pack, batch, s, **options))


def state_of(pack: Pack, policy: int) -> dict[str, torch.Tensor]:
    return pack.export_member(policy)


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)
