"""The body of FuN: an encoder, a manager that sets goals every step, and the memory of a worker that follows them.

    z = encoder(obs)                      shared
    s = relu(space(z))                    the manager's latent state; goals are directions in its space
    m = sum of the last c outputs of a dilated LSTM on s (r = c memories, one of which is written in each step)
    g = m / |m|                           the goal; a random one with probability EXPLORATION
    features = LSTM(z), g_{t-c} + ... + g_t     what the worker's policy and value read

The recurrent state holds the last c outputs and cells of the dilated LSTM, the last c latent states and goals (so that
goals are followed and rewarded across the borders of rollouts), the worker's LSTM, and a number that random goals are
drawn by. Where an episode begins all but that number is forgotten.

Learning computes the steps of a rollout again and needs the very goals that acting had, so a random goal cannot come
from a generator: it is a function of the observations since the row began, whose pixels are the same bits both times.
(Vectors that are normalised by running statistics are not: there learning may miss a random goal.)

Axes: T steps, B rows, F features, W width of latent states, goals and memories, c the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ..encoders import RELU_GAIN, Encoder, orthogonal
from ..models import Body, LstmCore

HORIZON = 10
"""c, and the dilation r (Vezhnevets et al. 2017, section 5)."""
EXPLORATION = 0.01
"""Probability of a random goal. The paper says "small"; a worker's sum of 11 goals has one in a tenth of the steps."""
NUMBERS = 2**24
"""Random numbers are whole numbers below this, which float32 holds exactly."""


class Unrolled(NamedTuple):
    """What the body makes of T steps. Of `latent` and `goal` the first c are from before them, 0 if there were none."""

    features: Tensor
    """[T, B, 2W] float32: the worker's memory, and the sum of goals, which has no gradients."""
    memory: Tensor
    """[T, B, W]: the manager's, before it is made a goal."""
    latent: Tensor
    """[c+T, B, W]"""
    goal: Tensor
    """[c+T, B, W] of length 1, or 0 where there was none."""
    episode: Tensor
    """[c+T, B] int64: steps with one number are of one episode."""
    state: Tensor
    """[B, S] after the last step."""


class DilatedLstm(nn.Module):
    """`count` memories with the same weights that take turns, so that each is written every `count` steps.

    The gate that keeps a memory begins with a bias of 1, as in `models.py`.
    All that run side by side between two turns are computed at once: T steps are T / count products.
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
        """Return (outputs of the last `count` steps and of these [count+T, B, W], last cells [count, B, W]), float32.

        hidden, cell: of the last `count` steps, the oldest first. kept, whole: whether what was written `count` steps
        before is of the same episode, and whether gradients go back to it (None: always).
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
    """See the head of this file. exploration: probability of a random goal."""

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
        """See `Body.forward`; the features are float32."""
        unrolled = self.unroll(obs, state, first, cut)
        return unrolled.features, unrolled.state

    def unroll(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> Unrolled:
        """Compute T steps; arguments as in `PolicyNet.forward`."""
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

        # In float32: a difference of two latent states is much smaller than they are.
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
        """Put a random direction, made of a step's number, in place of some goals."""
        random_TB = scrambled(number_TB)
        uniform = ((random_TB.unsqueeze(-1) + 1) * self.factors % NUMBERS).float() / (NUMBERS / 2) - 1
        chosen = random_TB < self.exploration * NUMBERS
        return torch.where(chosen.unsqueeze(-1), normalize(uniform, dim=-1), goal_TBW)


def _remembered(x: Tensor, kept: Tensor, whole: Tensor | None) -> Tensor:
    """Forget another episode's, and stop gradients where an unroll began since (None: nowhere)."""
    back = x if whole is None else torch.where(whole, x, x.detach())
    return torch.where(kept, back, 0.0)


def sum_of_past(x: Tensor, episode: Tensor, unroll: Tensor | None, reach: int, c: int) -> Tensor:
    """Sum x_{t-reach} + ... + x_t of each step, of its own episode: [T, B, W] of [c+T, B, W].

    Gradients go back within the unroll; None: to the first step.
    """

    def same(of: Tensor) -> Tensor:
        return (_windows(of, reach, c) == of[c:].unsqueeze(-1)).unsqueeze(-2)

    windows = _windows(x, reach, c)
    return _remembered(windows, same(episode), None if unroll is None else same(unroll)).sum(-1)


def _windows(x: Tensor, reach: int, c: int) -> Tensor:
    """View the steps t - reach..t of each step side by side: [T, B, ..., reach + 1] of [c+T, B, ...]."""
    return x[c - reach :].unfold(0, reach + 1, 1)


@torch.no_grad()
def fingerprint(obs: Mapping[str, Tensor]) -> Tensor:
    """Return a whole number of each observation, [T, B] int64: of its bytes alone if it has any, else of its numbers.

    Every eighth row and column of an image will do: numbers are summed over steps.
    """
    bytes_only = {name: x for name, x in obs.items() if x.dtype == torch.uint8}
    total: Tensor | int = 0
    for _, x in sorted((bytes_only or dict(obs)).items()):
        parts = x[..., ::8, ::8] if x.dim() > 4 else x
        numbers = parts if not parts.is_floating_point() else parts * 4096
        numbers = numbers.flatten(2).long() if numbers.dim() > 2 else numbers.unsqueeze(-1).long()
        weight = 2 * torch.arange(numbers.shape[-1], device=numbers.device) + 1
        total = total + (numbers * (weight * 40503 % NUMBERS)).sum(-1)
    assert isinstance(total, Tensor), "there is an observation"
    return total % NUMBERS


def scrambled(number: Tensor) -> Tensor:
    """Map whole numbers below NUMBERS one to one to others that look random."""
    half = 2**12
    for odd in (0x9E3779, 0x85EBCB, 0xC2B2AF):
        number = number * (2 * number + 1) % NUMBERS  # the lower half moves the upper one
        number = (number % half * half + number // half) * odd % NUMBERS
    return number
