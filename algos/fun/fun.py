"""FuN: a manager sets goals, a worker is rewarded for following them (Vezhnevets et al. 2017, "FeUdal Networks for
Hierarchical Reinforcement Learning"). The network without its heads is in `core.py`.

    policy      U_t phi(g_{t-c} + ... + g_t): U is a matrix of the worker's memory, phi linear without bias
    worker      A3C of R + alpha * r^I, r^I_t = 1/c sum_{i=1..c} cos(s_t - s_{t-i}, g_{t-i}), discount worker_gamma
    manager     -A_t cos(s_{t+c} - s_t, g_t), A_t = R_t - V^M_t of the reward alone, discount gamma

alpha is `intrinsic_coef`; r^I counts in units of reward. Goals have gradients by the manager's loss alone, and latent
states have none by the cosines. V^M reads the latent state, and the manager's memory without gradients.

The last observation of a rollout is what the step before it leads to, for the state and both values; it is no step that
is learned from. A step's s_{t+c} may lie beyond the rollout as well: its goal then has no loss. So of T steps the
manager's policy learns from T - c, and its value from T - 1; the paper's rollouts of 400 steps lose 3 in 100.
(Overlapping rollouts would lose nothing, but every buffer would be c steps longer, and kept until the next was full.)
Where an episode ends before, its last state stands for s_{t+c}: what the last goals of an episode led to is known.

Axes: T steps, B rows, c the horizon; of one policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from ..a3c import A3C, a3c_loss, short_rollouts
from ..algorithm import Hypers, LossInputs, OwnStep, UpdateSettings
from ..distributions import ACTION_MASK
from ..encoders import orthogonal
from ..losses import COMMON_STATISTICS, Stats, explained_variance, masked, mean
from ..models import NetInputs, PolicyNet, TwinBody
from ..returns import gae_torch
from .core import FunBody
from .entry import FunHypers

EMBEDDING = 16
"""k, the width of a goal's embedding."""
TINY = 1e-6
"""A shorter difference of latent states has no direction."""


class GoalHead(nn.Module):
    """The parameters of the actions, from the worker's memory and the sum of goals, each of `width` numbers."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.width, self.outputs = width, outputs
        self.actions = orthogonal(nn.Linear(width, outputs * EMBEDDING), 0.1)
        self.goal = nn.Linear(width, EMBEDDING, bias=False)
        nn.init.orthogonal_(self.goal.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., 2 * width] to [..., outputs]."""
        of_worker, goals = features.split(self.width, -1)
        actions = self.actions(of_worker).unflatten(-1, (self.outputs, EMBEDDING))
        product: Tensor = (actions @ self.goal(goals).unsqueeze(-1)).squeeze(-1)
        return product


def fun_network(net: PolicyNet, inputs: NetInputs) -> PolicyNet:
    """Put the manager and the worker behind the encoder. Raises ValueError for parts that leave no place for them."""
    body, heads = net.body, net.heads
    if isinstance(body, TwinBody):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            "fun has values of its own for manager and worker: leave --model.critic shared, and "
            "no observation to it alone"
        )
    if body.core is not None:
        raise ValueError("fun has memories of its own, of --model.core-size each: leave --model.core none")
    if not (isinstance(heads.policy, nn.Linear) and isinstance(heads.value, nn.Linear)):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            "fun has heads of its own: leave --model.policy-head and --model.value-head linear"
        )
    net.body = made = FunBody(body.encoder, inputs.core_size)
    net.state_size = made.state_size
    heads.policy = GoalHead(made.width, heads.policy.out_features)
    heads.value = orthogonal(nn.Linear(made.size, 1), 1.0)
    heads.auxiliary = orthogonal(nn.Linear(2 * made.width, 1), 1.0)
    return net


class Sequences(NamedTuple):
    """A minibatch in its order in time; for `fun_loss` of one policy, without the axis G."""

    obs: dict[str, Tensor]
    """Name -> [G, T, B, ...], as the network sees it."""
    state: Tensor
    """[G, B, S] before the first step."""
    first: Tensor
    """[G, T, B], as are the others."""
    cut: Tensor
    """An unroll begins: see models.py."""
    action: Tensor
    """[G, T, B, A]"""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


def backward(step: OwnStep) -> Stats:
    """See `Algorithm.backward`."""
    s = step.samples
    ends = (s.reward, s.terminated, s.truncated, s.valid)
    sequences = Sequences(step.group.normalized(s.obs), s.state, s.first, step.cut, s.action, *ends)
    of_one = partial(fun_loss, settings=step.settings)
    loss_G, stats, target_GTB = step.group.of_each(of_one, sequences, step.hypers, step.return_scale)
    loss_G.sum().backward()
    step.observe_returns(target_GTB)
    return dict(stats)


def fun_loss(
    net: PolicyNet, s: Sequences, hypers: Hypers, return_scale: Tensor, settings: UpdateSettings
) -> tuple[Tensor, Stats, Tensor]:
    """Compute (loss, stats, the worker's targets [T-1, B] in reward units) of one policy."""
    body, heads = _body(net), net.heads
    seen = {name: x for name, x in s.obs.items() if name != ACTION_MASK}
    unrolled = body.unroll(seen, s.state, s.first, s.cut)
    params, value = heads(unrolled.features)
    params = net.mask(params, s.obs)
    assert heads.auxiliary is not None
    latent = unrolled.latent[body.horizon :]
    of_manager = heads.auxiliary(torch.cat((latent, unrolled.memory.detach()), -1)).squeeze(-1)

    ends = (s.terminated[:-1], s.truncated[:-1], s.valid[:-1])
    one, unroll, valid = torch.ones_like(hypers["gamma"]), hypers["unroll"], s.valid[:-1]
    with torch.no_grad():
        intrinsic = intrinsic_reward(unrolled.latent, unrolled.goal, unrolled.episode, body.horizon)[1:]
        external = masked(s.reward[:-1], valid)
        both = external + hypers["intrinsic_coef"] * masked(intrinsic, valid)
        advantage = gae_torch(both, value * return_scale, *ends, hypers["worker_gamma"], one, unroll)
        target = advantage + value[:-1] * return_scale
        managed = gae_torch(external, of_manager * return_scale, *ends, hypers["gamma"], one, unroll)
        managed = managed / return_scale
        manager_target = managed + of_manager[:-1]
    dist = settings.distribution
    log_prob, entropy = dist.log_prob(params, s.action)[:-1], dist.entropy(params)[:-1]
    of_worker = LossInputs(
        log_prob=log_prob,
        entropy=entropy,
        value=value[:-1],
        advantage=advantage / return_scale,
        target=target / return_scale,
        old_log_prob=log_prob,
        old_value=value[:-1],
        acting_log_prob=log_prob,
        valid=valid,
    )
    coefs = {name: hypers[name] for name in ("value_coef", "entropy_coef")}
    worker, stats = a3c_loss(LossInputs(*(x.flatten() for x in of_worker)), **coefs)

    cosine, known = reached(latent, unrolled.goal[body.horizon :], *ends, body.horizon)
    goal_loss = -mean(managed * cosine, known)
    error = masked(of_manager[:-1] - manager_target, valid)
    manager_value_loss = 0.5 * mean(error.square(), valid)
    stats |= {
        "intrinsic_reward": mean(intrinsic, valid),
        "goal_cosine": mean(cosine.detach(), known),
        "manager_policy_loss": goal_loss.detach(),
        "manager_value_loss": manager_value_loss.detach(),
        "manager_explained_variance": explained_variance(
            masked(of_manager[:-1].detach(), valid).flatten(), manager_target.flatten(), valid.flatten()
        ),
    }
    return worker + goal_loss + hypers["value_coef"] * manager_value_loss, stats, target


def intrinsic_reward(latent: Tensor, goal: Tensor, episode: Tensor, c: int) -> Tensor:
    """Mean over i = 1..c of cos(s_t - s_{t-i}, g_{t-i}), [T, B]; 0 for a step before the episode.

    latent, goal, episode: as in `Unrolled`.
    """
    now = latent[c:]
    steps = now.shape[0]
    total = torch.zeros_like(now[..., 0])
    for back in range(1, c + 1):
        then = slice(c - back, c - back + steps)
        cosine = cosine_similarity(now - latent[then], goal[then], dim=-1, eps=TINY)
        total = total + torch.where(episode[then] == episode[c:], cosine, 0.0)
    return total / c


def reached(
    latent: Tensor, goal: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor, c: int
) -> tuple[Tensor, Tensor]:
    """Return cos(s_{t+c} - s_t, g_t) with gradients of the goals alone, and where s_{t+c} is known, both [T-1, B].

    latent, goal: [T, B, W]; the others [T-1, B]. The last state of an episode stands for those that it does not reach.
    """
    steps = terminated.shape[0]
    step_T1 = torch.arange(steps, device=latent.device).unsqueeze(-1)
    never = torch.full_like(step_T1, steps + c)
    # Without an end a step is invalid, too, if an actor was replaced: then the state before the reset is the last.
    last = torch.where(terminated | truncated, step_T1 + 1, torch.where(valid, never, step_T1))
    following = last.flip(0).cummin(0).values.flip(0)
    aim = torch.minimum(step_T1 + c, following)
    known = valid & (aim <= steps)
    state = latent.detach()
    index = aim.clamp(max=steps).unsqueeze(-1).expand(*aim.shape, state.shape[-1])
    difference = state.gather(0, index) - state[:-1]
    return cosine_similarity(difference, goal[:-1], dim=-1, eps=TINY), known


def _body(net: PolicyNet) -> FunBody:
    assert isinstance(net.body, FunBody)
    return net.body


def of_the_paper(env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """The paper's network, of 256 everywhere, and rollouts of many horizons, of which little is lost at their ends.

    All else, RMSProp's rate too, is a3c's.
    """
    return {
        **short_rollouts(env_recipe),
        "model.encoder": "mlp" if env_recipe.get("model.encoder") == "mlp" else "a3c",
        "model.hidden": 256,
        "model.critic": "shared",
        "model.core": "none",
        "model.core_size": 256,
        "learner.rollout": 100,
        "hypers.unroll": 100,
    }


FUN = replace(
    A3C,
    recipe=of_the_paper,
    hypers=FunHypers,
    network=fun_network,
    backward=backward,
    loss_hypers=("value_coef", "entropy_coef", "gamma", "worker_gamma", "intrinsic_coef", "unroll"),
    statistics=COMMON_STATISTICS
    | {
        "intrinsic_reward": "mean reward of the worker for following goals, -1 to 1",
        "goal_cosine": "mean cosine of a goal and what the next steps changed",
        "manager_policy_loss": "loss of the goals",
        "manager_value_loss": "loss of the manager's value, in the network's unit",
        "manager_explained_variance": "share of the variance of the manager's targets that its values explain",
    },
)
