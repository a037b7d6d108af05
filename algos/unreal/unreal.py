"""UNREAL: A3C with auxiliary tasks on a replay memory (Jaderberg et al. 2016).

"Reinforcement Learning with Unsupervised Auxiliary Tasks":

    loss = A3C's + pixel_control_coef * L_PC + value_replay_coef * L_VR + reward_prediction_coef * L_RP / 20

    pixel control      n-step Q-learning, whose rewards are the changes of each image cell; input: the policy's features
    value replay       n-step value loss on other segments of the replay
    reward prediction  class of the next reward (0, positive, negative); input: encoder features of 3 frames

The paper sums each term over 20 steps. Here terms are means over steps, as in a3c.py. Reward prediction has one sample
per 20 steps, so its weight is divided by 20. Pixel control and value replay each draw as many replayed steps as the
batch contains. The recurrent state is zero at the start of a replayed sequence. Rewards are those that the policy
learns from, after shaping and clipping. The auxiliary tasks start when the replay contains one sequence, not when the
replay is full.

Axes: L steps, S segments of a draw, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..a3c import A3C, short_rollouts
from ..algorithm import Auxiliary, Hypers
from ..batch import Segments
from ..distributions import ACTION_MASK
from ..encoders import LAST, RELU_GAIN, is_image, orthogonal
from ..hypers import UnrealHypers
from ..losses import COMMON_STATISTICS, Stats, masked, mean
from ..models import Body, NetInputs, PolicyNet
from ..replay import Draw, ReplaySpec
from ..returns import Trajectories, gae_torch
from .pixel_control import Cells, PixelQ, pixel_change, q_returns

SEQUENCE = 20
FRAMES = 3
"""Number of frames that a reward is predicted from."""
PREDICTION_SIZE = 128


class UnrealHeads(nn.Module):
    """Heads of the auxiliary tasks.

    body: body of the policy, which gives the sizes of the inputs.
    image: name of the observation for pixel control.
    newest: channels of the newest frame in this observation.
    cells: division of the image. nvec: sizes of the action components.
    """

    def __init__(self, body: Body, image: str, newest: slice, cells: Cells, nvec: tuple[int, ...]) -> None:
        super().__init__()
        self.image, self.newest = image, newest
        self.pixels = PixelQ(body.size, nvec, cells)
        self.reward = nn.Sequential(
            orthogonal(nn.Linear(FRAMES * body.encoder.size, PREDICTION_SIZE), RELU_GAIN),
            nn.ReLU(),
            orthogonal(nn.Linear(PREDICTION_SIZE, 3), 0.01),
        )


def unreal_network(net: PolicyNet, inputs: NetInputs) -> PolicyNet:
    """Add the auxiliary heads to `net`, in place. Return `net`.

    Raises ValueError without images, for continuous actions, and if policy and value have separate bodies.
    """
    images = [name for name, spec in inputs.obs.items() if name != ACTION_MASK and is_image(*spec)]
    if not images:
        raise ValueError(
            "algorithm 'unreal' needs an image observation (uint8, 3-D), but there is none: use --algo a3c"
        )
    if not inputs.nvec or inputs.continuous:
        raise ValueError("algorithm 'unreal' needs discrete actions, but some are continuous: use --algo a3c")
    (channels, height, width), _ = inputs.obs[images[0]]
    newest = slice(channels - 1, None) if inputs.stacks.get(images[0], 1) > 1 else slice(None)
    cells = Cells.of(height, width)
    net.heads.auxiliary = UnrealHeads(_body(net), images[0], newest, cells, inputs.nvec)
    return net


def auxiliary_loss(
    net: PolicyNet, segments: tuple[Segments, ...], hypers: Hypers, return_scale: Tensor
) -> tuple[Tensor, Stats]:
    """Return the weighted sum of one policy's three auxiliary losses, and statistics, all 0-d.

    segments: (sequences of SEQUENCE steps, segments of FRAMES steps). Pixel control learns from the first half of the
    sequences, and value replay from the second half.
    """
    sequences, frames = segments
    half = sequences.valid.shape[1] // 2
    features = _features(net, sequences)
    of_pixels = sequences.each(lambda x: x[:, :half])
    of_value = sequences.each(lambda x: x[:, half:])
    control = pixel_control_loss(net, of_pixels, features[:, :half])
    value_replay = value_replay_loss(net, of_value, features[:, half:], hypers["gamma"], return_scale)
    prediction, accuracy = reward_prediction_loss(net, frames)
    loss = (
        hypers["pixel_control_coef"] * control
        + hypers["value_replay_coef"] * value_replay
        + hypers["reward_prediction_coef"] * prediction / SEQUENCE
    )
    stats = {
        "pixel_control_loss": control,
        "value_replay_loss": value_replay,
        "reward_prediction_loss": prediction,
        "reward_prediction_accuracy": accuracy,
    }
    return loss, {name: x.detach() for name, x in stats.items()}


def _features(net: PolicyNet, s: Segments) -> Tensor:
    """Compute the features of S sequences of L+1 steps, from a zero recurrent state: [L+1, S, F] float32."""
    seen = {name: x for name, x in s.obs.items() if name != ACTION_MASK}
    state = torch.zeros((s.valid.shape[1], net.state_size), device=s.valid.device)
    features: Tensor = net.body(seen, state, s.first)[0]
    return features.float()


def pixel_control_loss(net: PolicyNet, s: Segments, features: Tensor) -> Tensor:
    """Compute the loss 0.5 * (R - Q(s, a))^2, summed over cells and averaged over steps, 0-d.

    R: `q_returns`. features: [L+1 steps, S segments, F].
    """
    heads = _heads(net)
    value, advantage = heads.pixels(features)
    with torch.no_grad():
        change = pixel_change(s.obs[heads.image][:, :, heads.newest], heads.pixels.cells)
        best = heads.pixels.of_best(value, advantage)
        target = q_returns(change, best, s.terminated, s.truncated, s.valid)
    q = heads.pixels.of_action(value[:-1], advantage[:-1], s.action)
    return mean(0.5 * (target - q).square().sum((-2, -1)), s.valid)


def value_replay_loss(
    net: PolicyNet, s: Segments, features: Tensor, gamma: Tensor, return_scale: Tensor
) -> Tensor:
    """Compute the mean of 0.5 * (R - V)^2, 0-d, in normalised units (reward units divided by `return_scale`).

    R: n-step return with current values. features: [L+1 steps, S segments, F].
    """
    value = net.heads.value(features).squeeze(-1)
    with torch.no_grad():
        never = torch.full((), s.valid.shape[0] + 1, device=value.device)
        ends = (s.terminated, s.truncated, s.valid)
        reward = masked(s.reward, s.valid) / return_scale
        target = (
            gae_torch(Trajectories(reward, value, *ends), gamma, torch.ones_like(gamma), never) + value[:-1]
        )
    return mean(0.5 * (target - value[:-1]).square(), s.valid)


def reward_prediction_loss(net: PolicyNet, s: Segments) -> tuple[Tensor, Tensor]:
    """Return (cross-entropy in nats, accuracy) of the predicted class of the reward after the last frame, both 0-d."""
    seen = {
        name: torch.zeros_like(x[:FRAMES]) if name == LAST else x[:FRAMES]
        for name, x in s.obs.items()
        if name != ACTION_MASK
    }
    features = _body(net).encoder({name: x.flatten(0, 1) for name, x in seen.items()}).float()
    joined = features.unflatten(0, s.valid.shape).transpose(0, 1).flatten(1)  # [S, FRAMES * F]
    log_prob = _heads(net).reward(joined).log_softmax(-1)
    reward, valid = s.reward[-1], s.valid.all(0)
    kind = torch.where(reward > 0, 1, torch.where(reward < 0, 2, 0))
    loss = mean(-log_prob.gather(-1, kind.unsqueeze(-1)).squeeze(-1), valid)
    return loss, mean((log_prob.argmax(-1) == kind).float(), valid)


def _body(net: PolicyNet) -> Body:
    if isinstance(net.body, Body):
        return net.body
    raise ValueError(
        "algorithm 'unreal' needs features shared by policy and value: set --model.critic shared and "
        "use no observation for the critic alone"
    )


def _heads(net: PolicyNet) -> UnrealHeads:
    heads = net.heads.auxiliary
    assert isinstance(heads, UnrealHeads)
    return heads


def of_the_paper(env_recipe: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options of the paper.

    These are: small CNN, LSTM of 256 with the last action and reward as inputs, unroll of 20 steps. An environment
    whose recipe selects an MLP keeps it.
    """
    network = {
        # An MLP encodes images that are too small for the CNN. Without images, `unreal_network` raises an error.
        "model.encoder": "mlp" if env_recipe.get("model.encoder") == "mlp" else "a3c",
        "model.hidden": (256,),
        "model.critic": "shared",
        "model.core": "lstm",
        "model.core_size": 256,
        "model.last_action_reward": True,
    }
    return {**short_rollouts({**env_recipe, **network}), **network}


UNREAL = replace(
    A3C,
    recipe=of_the_paper,
    hypers=UnrealHypers,
    network=unreal_network,
    auxiliary=Auxiliary(
        loss=auxiliary_loss,
        hypers=("gamma", "pixel_control_coef", "value_replay_coef", "reward_prediction_coef"),
        replay=ReplaySpec(
            draws=(Draw(SEQUENCE, times=2), Draw(FRAMES, rewarded_half=True)), per_steps=SEQUENCE
        ),
    ),
    statistics=COMMON_STATISTICS
    | {
        "pixel_control_loss": "pixel control loss, summed over cells",
        "value_replay_loss": "value loss on the replay, in normalised units",
        "reward_prediction_loss": "cross-entropy of the predicted class of reward, in nats",
        "reward_prediction_accuracy": "fraction of replayed rewards whose class is predicted correctly",
    },
)
