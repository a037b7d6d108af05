"""FuN: a manager sets goals for a worker (Vezhnevets et al. 2017).

"FeUdal Networks for Hierarchical Reinforcement Learning":

    policy      U_t phi(g_{t-c} + ... + g_t): the worker's memory gives the matrix U_t, phi is linear without bias
    worker      A3C on R + alpha * r^I, r^I_t = 1/c sum_{i=1..c} cos(s_t - s_{t-i}, g_{t-i}), discount worker_gamma
    manager     -A_t cos(s_{t+c} - s_t, g_t), A_t = R_t - V^M_t with the reward R alone, discount gamma

alpha is `intrinsic_coef`, and r^I has the unit of rewards. Goals receive gradients only from the manager's loss. The
cosines pass no gradients to latent states. The inputs of V^M are the manager's latent state, and the manager's memory
without gradients.

The last step of a rollout only provides the next state and both bootstrap values. The worker and the manager's value
learn from T - 1 steps. The manager's policy learns from T - c steps, because s_{t+c} of the last goals is in the next
rollout. The paper's rollouts of 400 steps lose 3 % of the goals. Overlapping rollouts would lose no goals, but buffers
would be c steps longer and would be occupied until the next rollout is full. If an episode ends before step t + c, the
episode's last state replaces s_{t+c}.

The body consists of an encoder, a manager that sets a goal at every step, and the worker's memory:

    z = encoder(obs)                      shared
    s = relu(space(z))                    the manager's latent state; goals are directions in its space
    m = sum of the last c outputs of a dilated LSTM on s (r = c memories; each step writes one of them)
    g = m / |m|                           the goal; random with probability EXPLORATION
    features = LSTM(z), g_{t-c} + ... + g_t     input of the worker's policy and value

The recurrent state contains the last c outputs and cells of the dilated LSTM, the last c latent states and goals, the
worker's LSTM state, and the seed of random goals. Latent states and goals are part of the state, because a goal is
followed for c steps, even into the next rollout. The start of an episode resets everything except the seed.

Learning recomputes the steps of a rollout and must reproduce the random goals of acting. Therefore a random goal is a
hash of all observations of the row so far, and not a draw from a generator. Raw pixels are identical in acting and
learning. Vectors and images that are normalised by running statistics are not identical: learning may then compute a
different goal.

Axes of one policy: T steps, B rows, F features, W width of latent states, goals and memories, c the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear, normalize

from .a3c import A3C, a3c_loss, short_rollouts
from .algorithm import Hypers, LossInputs, OwnStep, UpdateSettings
from .cores import LstmCore
from .distributions import ACTION_MASK
from .encoders import RELU_GAIN, Encoder, orthogonal
from .hypers import FunHypers
from .losses import COMMON_STATISTICS, Stats, explained_variance, masked, mean
from .models import Body, NetInputs, PolicyNet, TwinBody
from .returns import Trajectories, gae_torch

HORIZON = 10
"""Horizon c of goals, and dilation r of the manager's LSTM (Vezhnevets et al. 2017, section 4.1)."""
EXPLORATION = 0.01
"""Probability of a random goal. The paper calls this probability "small" and gives no number. A worker follows the sum
of 11 goals, so about a tenth of its steps depend on a random goal."""
NUMBERS = 2**24
"""Random numbers are integers below this limit, because float32 represents these integers exactly."""


class Unrolled(NamedTuple):
    """Outputs of the body for T steps. `latent`, `goal` and `episode` start with the c previous steps."""

    features: Tensor
    """[T, B, 2W] float32: the worker's memory, and the sum of goals without gradients"""
    memory: Tensor
    """[T, B, W]: m, the manager's memory before normalisation to a goal"""
    latent: Tensor
    """[c+T, B, W] the manager's latent states s. The c previous steps are 0 where they belong to another episode than
    the last of them."""
    goal: Tensor
    """[c+T, B, W] goals g, unit vectors, with zeros at the same steps as `latent`."""
    episode: Tensor
    """[c+T, B] int64: number of the step's episode"""
    state: Tensor
    """[B, S] recurrent state after the last step"""


class DilatedLstm(nn.Module):
    """`count` LSTM memories with shared weights, written round-robin: step t writes memory t % count.

    The initial bias of the forget gate is 1, as in cores.py. `count` consecutive steps are computed together, so T
    steps take T / count recurrent matrix products, rounded up.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.input = orthogonal(nn.Linear(width, 4 * width), 1.0)
        self.recurrent = orthogonal(nn.Linear(width, 4 * width), 1.0)
        nn.init.ones_(self.recurrent.bias[width : 2 * width])

    def forward(
        self, x_TBF: Tensor, hidden_cBW: Tensor, cell_cBW: Tensor, kept_TB: Tensor, whole_TB: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute outputs [count+T, B, W] and last cells [count, B, W], float32.

        The outputs start with the `count` outputs in `hidden`.

        hidden, cell: memories of the previous `count` steps, oldest first.
        kept: True if the memory that was written `count` steps before belongs to the same episode.
        whole: True if gradients flow back to this memory. None: True at all steps.
        """
        dtype = self.recurrent.weight.dtype
        projected, out = self.input(x_TBF.to(dtype)).float(), [hidden_cBW]
        for begin in range(0, x_TBF.shape[0], self.count):
            now = slice(begin, begin + self.count)
            steps = projected[now].shape[0]
            kept = kept_TB[now].unsqueeze(-1)
            whole = None if whole_TB is None else whole_TB[now].unsqueeze(-1)
            hidden, cell = (_remembered(x[:steps], kept, whole) for x in (hidden_cBW, cell_cBW))
            gates = projected[now] + self.recurrent(hidden.to(dtype)).float()
            write, forget, new, read = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            hidden = read.sigmoid() * cell.tanh()
            out.append(hidden)
            hidden_cBW = torch.cat((hidden_cBW[steps:], hidden))
            cell_cBW = torch.cat((cell_cBW[steps:], cell))
        return torch.cat(out), cell_cBW


class FunBody(Body):
    """Body with encoder, manager and the worker's memory.

    width: W, width of latent states, goals and memories. horizon: c, number of steps for which a goal is followed.
    exploration: probability of a random goal.
    """

    factors: Tensor

    def __init__(
        self, encoder: Encoder, width: int, horizon: int = HORIZON, exploration: float = EXPLORATION
    ) -> None:
        super().__init__(encoder, None)
        self.space = orthogonal(nn.Linear(encoder.size, width), RELU_GAIN)
        self.manager = DilatedLstm(width, horizon)
        self.worker = LstmCore(encoder.size, width)
        self.width, self.horizon, self.exploration = width, horizon, exploration
        self.size = 2 * width
        self._sizes = [4 * horizon * width, self.worker.state_size, 1]
        self.state_size = sum(self._sizes)
        factors = scrambled(torch.arange(1, width + 1))
        self.register_buffer("factors", 2 * factors + 1, persistent=False)

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute float32 features and the next state; see `Body.forward`."""
        unrolled = self.unroll(obs, state, first, cut)
        return unrolled.features, unrolled.state

    def unroll(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> Unrolled:
        """Compute T steps; arguments: see `PolicyNet.forward`."""
        c = self.horizon
        of_manager, of_worker, drawn = state.split(self._sizes, -1)
        past_cBW = of_manager.unflatten(-1, (c, 4 * self.width)).transpose(0, 1)
        hidden, cell, past, goals = past_cBW.chunk(4, -1)
        features_TBF = self.encoder({name: x.flatten(0, 1) for name, x in obs.items()}).unflatten(
            0, first.shape
        )
        before = torch.zeros((c, first.shape[1]), dtype=torch.int64, device=first.device)
        episode = torch.cat((before, first.long().cumsum(0)))
        unroll = None if cut is None else torch.cat((before, 1 + cut.long().cumsum(0)))
        kept_TB = episode[c:] == episode[:-c]
        whole_TB = None if unroll is None else unroll[c:] == unroll[:-c]

        # In float32, because differences of latent states are much smaller than the states.
        latent_TBW = torch.relu(
            linear(features_TBF.float(), self.space.weight.float(), self.space.bias.float())
        )
        outputs, cell = self.manager(latent_TBW, hidden, cell, kept_TB, whole_TB)
        memory_TBW = sum_of_past(outputs, episode, unroll, c - 1, c)
        number_TB = (drawn.squeeze(-1).long() + (1 + fingerprint(obs)).cumsum(0)) % NUMBERS
        goal_TBW = self._explored(normalize(memory_TBW, dim=-1, eps=1e-6), number_TB)
        latent, goal = torch.cat((past, latent_TBW)), torch.cat((goals, goal_TBW))
        followed_TBW = sum_of_past(goal.detach(), episode, None, c, c)
        worker_TBW, of_worker = self.worker(features_TBF, of_worker, first, cut)
        past_cBW = torch.cat([x[-c:] for x in (outputs, cell, latent, goal)], -1)
        past_cBW = torch.where((episode[-c:] == episode[-1]).unsqueeze(-1), past_cBW, 0.0)
        parts = (past_cBW.transpose(0, 1).flatten(1), of_worker, number_TB[-1].float().unsqueeze(-1))
        return Unrolled(
            features=torch.cat((worker_TBW.float(), followed_TBW), -1),
            memory=memory_TBW,
            latent=latent,
            goal=goal,
            episode=episode,
            state=torch.cat(parts, -1),
        )

    def _explored(self, goal_TBW: Tensor, number_TB: Tensor) -> Tensor:
        """Replace some goals [T, B, W] by random directions. number: [T, B] int64, seed of each step."""
        random_TB = scrambled(number_TB)
        uniform = ((random_TB.unsqueeze(-1) + 1) * self.factors % NUMBERS).float() / (NUMBERS / 2) - 1
        chosen = random_TB < self.exploration * NUMBERS
        return torch.where(chosen.unsqueeze(-1), normalize(uniform, dim=-1), goal_TBW)


def _remembered(x: Tensor, kept: Tensor, whole: Tensor | None) -> Tensor:
    """Set memories to 0 where `kept` is False.

    kept: bool, True where the memory belongs to the episode. whole: bool, gradients stop where it is False. None: no
    gradients stop. x: [..., W]. kept, whole: broadcast to x.
    """
    back = x if whole is None else torch.where(whole, x, x.detach())
    return torch.where(kept, back, 0.0)


def sum_of_past(x: Tensor, episode: Tensor, unroll: Tensor | None, reach: int, c: int) -> Tensor:
    """Sum x_{t-reach} + ... + x_t within each step's episode: [T, B, W] from [c+T, B, W].

    c, reach: the input has c steps before step 0, and reach is at most c.
    episode: [c+T, B], number of the episode that contains each step.
    unroll: [c+T, B], number of the unroll that contains each step. Gradients flow back only within an unroll. None:
    gradients flow back to the first step.
    """

    def same(of: Tensor) -> Tensor:
        return (_windows(of, reach, c) == of[c:].unsqueeze(-1)).unsqueeze(-2)

    windows = _windows(x, reach, c)
    return _remembered(windows, same(episode), None if unroll is None else same(unroll)).sum(-1)


def _windows(x: Tensor, reach: int, c: int) -> Tensor:
    """Return a view [T, B, ..., reach + 1] of x [c + T, B, ...]: element [t, ..., i] is x[c + t - reach + i].

    reach: at most c.
    """
    return x[c - reach :].unfold(0, reach + 1, 1)


@torch.no_grad()
def fingerprint(obs: Mapping[str, Tensor]) -> Tensor:
    """Hash the observations of each step to one integer, [T, B] int64.

    If there are uint8 arrays, only the uint8 arrays are hashed. Every eighth row and column of an image is enough,
    because the hashes are summed over steps.
    """
    bytes_only = {name: x for name, x in obs.items() if x.dtype == torch.uint8}
    total: Tensor | int = 0
    for _, x in sorted((bytes_only or dict(obs)).items()):
        parts = x[..., ::8, ::8] if x.dim() > 4 else x
        numbers = parts if not parts.is_floating_point() else parts * 4096
        numbers = numbers.flatten(2).long() if numbers.dim() > 2 else numbers.unsqueeze(-1).long()
        weight = 2 * torch.arange(numbers.shape[-1], device=numbers.device) + 1
        total = total + (numbers * (weight * 40503 % NUMBERS)).sum(-1)
    assert isinstance(total, Tensor), "at least one observation is required"
    return total % NUMBERS


def scrambled(number: Tensor) -> Tensor:
    """Map integers 0 to NUMBERS - 1 (int64, any shape) to pseudo-random integers in this range, one to one."""
    half = 2**12
    for odd in (0x9E3779, 0x85EBCB, 0xC2B2AF):
        number = number * (2 * number + 1) % NUMBERS  # the lower half changes the upper half
        number = (number % half * half + number // half) * odd % NUMBERS
    return number


EMBEDDING = 16
"""k, the width of a goal embedding."""
TINY = 1e-6
"""Minimum length in the denominator of a cosine, so that the cosine of a zero difference of latent states is 0."""


class GoalHead(nn.Module):
    """Policy head. Its inputs are the worker's memory and the sum of goals, each of `width` numbers.

    outputs: number of distribution parameters.
    """

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
    """Add manager and worker after the encoder of `net`, in place. Return `net`.

    Raises ValueError for conflicting network options.
    """
    body, heads = net.body, net.heads
    if isinstance(body, TwinBody):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            "algorithm 'fun' has separate values for manager and worker: set --model.critic shared and "
            "use no observation for the critic alone"
        )
    if body.core is not None:
        raise ValueError(
            "algorithm 'fun' has built-in memories of --model.core-size each: set --model.core none"
        )
    if not (isinstance(heads.policy, nn.Linear) and isinstance(heads.value, nn.Linear)):
        raise ValueError(  # noqa: TRY004 - the user's option is wrong, not our call
            "algorithm 'fun' has built-in heads: set --model.policy-head linear and --model.value-head linear"
        )
    net.body = made = FunBody(body.encoder, inputs.core_size)
    net.state_size = made.state_size
    heads.policy = GoalHead(made.width, heads.policy.out_features)
    heads.value = orthogonal(nn.Linear(made.size, 1), 1.0)
    heads.auxiliary = orthogonal(nn.Linear(2 * made.width, 1), 1.0)
    return net


class Sequences(NamedTuple):
    """Minibatch in time order. In `fun_loss`, which computes one policy, the axis G is absent."""

    obs: dict[str, Tensor]
    """Name -> [G, T, B, ...], observations after normalisation"""
    state: Tensor
    """[G, B, S] recurrent state before the first step"""
    first: Tensor
    """[G, T, B] bool: the step starts an episode. All following fields except `action` have this shape."""
    cut: Tensor
    """bool: the step starts an unroll. Gradients stop before the step (see cores.py)."""
    action: Tensor
    """[G, T, B, A]"""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


def backward(step: OwnStep) -> Stats:
    """Compute losses and gradients; see `Algorithm.backward`."""
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
    """Compute (0-d loss, statistics, targets of the worker [T-1, B] in reward units) of one policy.

    s: fields without the axis G. hypers, return_scale: 0-d.
    """
    body, heads = net.body, net.heads
    assert isinstance(body, FunBody)
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
        of_worker = Trajectories(both, value * return_scale, *ends)
        advantage = gae_torch(of_worker, hypers["worker_gamma"], one, unroll)
        target = advantage + value[:-1] * return_scale
        of_the_manager = Trajectories(external, of_manager * return_scale, *ends)
        managed = gae_torch(of_the_manager, hypers["gamma"], one, unroll) / return_scale
        manager_target = managed + of_manager[:-1]
    dist = settings.distribution
    log_prob, entropy = dist.log_prob(params, s.action)[:-1], dist.entropy(params)[:-1]
    inputs = LossInputs(
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
    worker, stats = a3c_loss(LossInputs(*(x.flatten() for x in inputs)), **coefs)

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
    """Compute the mean over i = 1..c of cos(s_t - s_{t-i}, g_{t-i}), [T, B]. Terms from before the episode are 0.

    latent, goal, episode: fields of `Unrolled`. c: horizon of goals.
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
    """Compute cos(s_{t+c} - s_t, g_t) and a mask of known s_{t+c}, both [T-1, B].

    If the episode ends before step t + c, the episode's last state replaces s_{t+c}. Gradients flow to the goals only.

    latent, goal: [T, B, W].
    terminated, truncated, valid: [T-1, B]. c: horizon of goals.
    """
    steps = terminated.shape[0]
    step_T1 = torch.arange(steps, device=latent.device).unsqueeze(-1)
    never = torch.full_like(step_T1, steps + c)
    # If an actor was replaced, a step is invalid although no episode has ended. The last state is then the
    # state before the reset.
    last = torch.where(terminated | truncated, step_T1 + 1, torch.where(valid, never, step_T1))
    following = last.flip(0).cummin(0).values.flip(0)
    aim = torch.minimum(step_T1 + c, following)
    known = valid & (aim <= steps)
    state = latent.detach()
    index = aim.clamp(max=steps).unsqueeze(-1).expand(*aim.shape, state.shape[-1])
    difference = state.gather(0, index) - state[:-1]
    return cosine_similarity(difference, goal[:-1], dim=-1, eps=TINY), known


def of_the_paper(env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return the paper's network options (width 256) and long rollouts. All other options are as for a3c.

    Rollouts are long because the goals of the last c steps have no loss.
    """
    return {
        **short_rollouts(env_recipe),
        "model.encoder": "mlp" if env_recipe.get("model.encoder") == "mlp" else "a3c",
        "model.hidden": (256,),
        "model.critic": "shared",
        "model.core": "none",
        "model.core_size": 256,
        # Random goals are derived from the network's inputs, and must be equal in acting and learning.
        "learner.normalize_images": False,
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
        "goal_cosine": "mean cosine of a goal and the change of the latent state over the next steps",
        "manager_policy_loss": "policy loss of the manager (goals)",
        "manager_value_loss": "value loss of the manager, in normalised units",
        "manager_explained_variance": "fraction of the variance of the manager's targets explained by its values",
    },
)
