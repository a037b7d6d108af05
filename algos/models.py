"""The network of a policy: encoder -> optional recurrent core (together the *body*) -> heads.

    net = make_model({"obs": ((4, 84, 84), "uint8")}, param_size=6, core="gru")
    params_TBD, value_TB, state_BS = net(obs, state_BS, first_TB)

Axes: T time, B rows, N = T * B, C channels, F features, S recurrent state, D distribution parameters.

The body computes in the dtype of its weights, so `net.body.to(torch.bfloat16)` is all that a faster
precision takes; the heads and the recurrent state stay float32. All state is in parameters, and nothing is
changed in place: it works under torch.func.functional_call and under vmap over stacked parameters.
Initial weights are drawn from torch's global generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .cores import GruCore, LstmCore
from .distributions import ACTION_MASK, mask_logits
from .encoders import Encoder, ObsEncoder, ObsShapes, UserEncoder
from .layers import orthogonal

Core = Literal["none", "gru", "lstm"]


class NetInputs(NamedTuple):
    """What a network is made for."""

    obs: ObsShapes
    """As the network sees them."""
    stacks: Mapping[str, int]
    """Name of an observation -> frames stacked in it, 1 for none. The newest is the last channel."""
    nvec: tuple[int, ...]
    """Sizes of the components of a discrete action; empty if actions are continuous."""


def make_model(
    obs_shapes: ObsShapes,
    param_size: int,
    *,
    gaussian: bool = False,
    encoder: str = "auto",
    hidden: int = 512,
    layers: int = 2,
    core: Core = "none",
    core_size: int = 256,
    nvec: tuple[int, ...] = (),
) -> PolicyNet:
    """Build a policy with fresh weights, float32, convolutions channels-last.

    param_size: D. gaussian: D / 2 means from the features and as many log deviations, which are parameters
    of their own; else D logits. encoder: `auto` (Nature CNN for images, MLP for the rest), `nature`, `impala`
    and `a3c` (MLP for other observations), `mlp`, or `module:factory` (see `UserEncoder`). An image is uint8 of shape
    (C, H, W), a text is int32 of shape (L,) (see `WordEncoder`); other observations are flattened. One named LAST
    joins the features as it is (Espeholt et al. 2018, Figure 3). hidden: F of the encoder without that. layers: hidden
    layers of an MLP.
    nvec: sizes of the action's components, needed if an observation is named ACTION_MASK: the encoder does not
    receive that one, it masks the logits (see `mask_logits`).
    Raises ValueError for an encoder that cannot be used with these observations.
    """
    masked = ACTION_MASK in obs_shapes
    assert not masked or sum(nvec) == param_size, "a mask has one number for each logit"
    obs_shapes = {name: spec for name, spec in obs_shapes.items() if name != ACTION_MASK}
    body_encoder: Encoder
    if ":" in encoder:
        body_encoder = UserEncoder(encoder, obs_shapes)
    else:
        body_encoder = ObsEncoder(obs_shapes, encoder, hidden, layers)
    size = body_encoder.size
    body_core = {"none": None, "gru": GruCore, "lstm": LstmCore}[core]
    body = Body(body_encoder, body_core and body_core(size, core_size))
    heads = Heads(size if core == "none" else core_size, param_size, gaussian=gaussian)
    net = PolicyNet(body, heads, nvec if masked else ())
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


class PolicyNet(nn.Module):
    """Body in its own dtype, heads in float32. `state_size` is S, 0 without a recurrent core.

    masked: sizes of the action's components if an action mask comes with the observations, else ().
    """

    def __init__(self, body: Body, heads: Heads, masked: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.masked = masked
        self.body = body
        self.heads = heads
        self.state_size = body.core.state_size if body.core is not None else 0

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (params [T, B, D], value [T, B], state after the last step [B, S]), all float32.

        obs: name -> [T, B, ...] as the environment delivers it. state: [B, S] float32 before the first step.
        first: [T, B] bool, the step begins an episode: the state is zeroed before it.
        """
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features_TBF, state = self.body(seen, state, first)
        params_TBD, value_TB = self.heads(features_TBF.float())
        return self.mask(params_TBD, obs), value_TB, state

    def mask(self, params: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Remove the actions that the observations forbid from params [..., D], if there is a mask."""
        return mask_logits(params, obs[ACTION_MASK], self.masked) if self.masked else params


class Heads(nn.Module):
    """Policy and value as linear functions of the features; a Gaussian's log deviations depend on nothing."""

    def __init__(self, size: int, param_size: int, *, gaussian: bool) -> None:
        super().__init__()
        assert not (gaussian and param_size % 2), "a Gaussian has a mean and a deviation for each component"
        means = param_size // 2 if gaussian else param_size
        self.policy = orthogonal(nn.Linear(size, means), 0.01)
        self.value = orthogonal(nn.Linear(size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(means)) if gaussian else None
        self.auxiliary: nn.Module | None = None
        """Heads of an algorithm's own, for what it learns besides; acting does not use them."""

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Map [..., F] float32 to params [..., D], value [...]."""
        params, value = self.policy(features), self.value(features).squeeze(-1)
        if self.log_std is not None:
            params = torch.cat((params, self.log_std.expand_as(params)), -1)
        return params, value


class Body(nn.Module):
    """Encoder and, if any, recurrent core: the part that may be cast to bf16."""

    def __init__(self, encoder: Encoder, core: GruCore | LstmCore | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core

    def forward(self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features [T, B, F] in the weights' dtype, state [B, S]); arguments as in `PolicyNet.forward`."""
        features_NF = self.encoder({name: x.flatten(0, 1) for name, x in obs.items()})
        features_TBF = features_NF.unflatten(0, first.shape)
        if self.core is None:
            return features_TBF, state
        out_TBF, state = self.core(features_TBF, state, first)
        return out_TBF, state
