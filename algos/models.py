"""The network of a policy: encoder -> optional recurrent core (together the *body*) -> heads.

    net = make_model({"obs": ((4, 84, 84), "uint8")}, 6, ModelConfig(core="gru"))
    params_TBD, value_TB, state_BS = net(obs, state_BS, first_TB)

Axes: T time, B rows, N = T * B, C channels, F features, S recurrent state, D distribution parameters.

The body computes in the dtype of its weights, so `net.body.to(torch.bfloat16)` is all that a faster
precision takes; the heads and the recurrent state stay float32. All state is in parameters, and nothing is
changed in place: it works under torch.func.functional_call and under vmap over stacked parameters.
Initial weights are drawn from torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .cores import Core, GruCore, LstmCore, StackedCore
from .distributions import ACTION_MASK, mask_logits
from .encoders import Encoder, ObsEncoder, ObsShapes, orthogonal
from .model_config import ModelConfig
from .own_parts import UserCore, UserEncoder, UserHead

Deviation = Literal["free", "state"]
LOG_STD_RANGE = (-5.0, 2.0)
"""Log deviations that are computed from the state are kept within it, so that no observation makes them explode."""
FREE_LOG_STD_RANGE = (math.log(1e-4), math.log(1e4))
"""Those that are parameters may suit actions of any size (the range is Sample Factory's). Beyond it a bonus for
entropy, whose slope never ends, leads to infinite actions; below it draws are too close to their mean for float32."""


class Heads(nn.Module):
    """Policy and value as linear functions of the features, or by modules of the user's own.

    size, critic_size: of the policy's features, and of the critic's. continuous: of the D
    parameters, so many at the end are log deviations. deviation: `free`: they are parameters and depend on nothing;
    `state`: they are functions of the features too. initial_deviation: what they begin with, but for `state` with a
    policy of the user's own. policy, value: `linear`, or `module:factory` (see encoders.py).
    """

    def __init__(
        self,
        size: int,
        param_size: int,
        continuous: int,
        *,
        critic_size: int | None = None,
        deviation: Deviation = "free",
        initial_deviation: float = 1.0,
        policy: str = "linear",
        value: str = "linear",
    ) -> None:
        super().__init__()
        assert param_size >= 2 * continuous, "a normal has a mean and a deviation for each component"
        self.param_size = param_size
        free = continuous if deviation == "free" else 0
        self._limited = continuous - free
        self.policy = _head("policy-head", policy, size, param_size - free, 0.01)
        self.value = _head("value-head", value, size if critic_size is None else critic_size, 1, 1.0)
        start = math.log(initial_deviation)
        self.log_std = nn.Parameter(torch.full((free,), start)) if free else None
        if self._limited and isinstance(self.policy, nn.Linear):
            nn.init.constant_(self.policy.bias[-self._limited :], start)
        self.auxiliary: nn.Module | None = None
        """Heads of an algorithm's own, for what it learns besides; acting does not use them."""

    def forward(self, features: Tensor, of_critic: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map [..., F] float32 to params [..., D], value [...]. of_critic: features of its own, if it has some."""
        params = self.params(features)
        return params, self.value(features if of_critic is None else of_critic).squeeze(-1)

    def params(self, features: Tensor) -> Tensor:
        """Map [..., F] float32 to params [..., D]."""
        params: Tensor = self.policy(features)
        if self.log_std is not None:
            log_std = self.log_std.clamp(*FREE_LOG_STD_RANGE)
            params = torch.cat((params, log_std.expand(*params.shape[:-1], -1)), -1)
        elif self._limited:
            rest, log_std = params.split((self.param_size - self._limited, self._limited), -1)
            params = torch.cat((rest, log_std.clamp(*LOG_STD_RANGE)), -1)
        return params


def _head(part: str, kind: str, size: int, outputs: int, gain: float) -> nn.Module:
    if ":" in kind:
        return UserHead(part, kind, size, outputs)
    return orthogonal(nn.Linear(size, outputs), gain)


def make_core(kind: str, size: int, core_size: int, layers: int) -> Core | None:
    """Return the core of this kind on features of this size; None for "none"."""
    if ":" in kind:
        return UserCore(kind, size)
    if kind == "none":
        return None
    make: Callable[[int, int], Core] = {"gru": GruCore, "lstm": LstmCore}[kind]
    return make(size, core_size) if layers == 1 else StackedCore(make, size, core_size, layers)


class NetInputs(NamedTuple):
    """What a network is made for."""

    obs: ObsShapes
    """As the network sees them."""
    stacks: Mapping[str, int]
    """Name of an observation -> frames stacked in it, 1 for none. The newest is the last channel."""
    nvec: tuple[int, ...]
    """Sizes of the discrete components of an action."""
    continuous: int = 0
    """Number of its continuous components."""
    core_size: int = 256
    """Width of a recurrent core, as the options have it."""


def make_model(
    obs_shapes: ObsShapes,
    param_size: int,
    model: ModelConfig,
    *,
    continuous: int = 0,
    critic_only: tuple[str, ...] = (),
    nvec: tuple[int, ...] = (),
) -> PolicyNet:
    """Build a policy with initialised weights, float32, convolutions channels-last.

    param_size: D, the logits, then the means and the log deviations of so many `continuous` components.
    An image is uint8 of shape (C, H, W), a text is int32 of shape (L,) (see `WordEncoder`); other observations are
    flattened. The encoder is for images, an MLP reads the others. One named LAST joins the features as it is
    (Espeholt et al. 2018, Figure 3). Of the initial deviations the first is used.
    critic_only: names of observations that the policy does not see; they give the critic a body of its own.
    nvec: sizes of the action's components, needed if an observation is named ACTION_MASK: the encoder does not
    receive that one, it masks the logits (see `mask_logits`).
    Raises ValueError for an encoder that cannot be used with these observations, and for a part of the user's own that
    cannot be used.
    """
    masked = ACTION_MASK in obs_shapes
    assert not masked or sum(nvec) == param_size - 2 * continuous, "a mask has one number for each logit"
    seen = {name: spec for name, spec in obs_shapes.items() if name != ACTION_MASK}

    def make_body(seen: ObsShapes) -> Body:
        made = (
            UserEncoder(model.encoder, seen)
            if ":" in model.encoder
            else ObsEncoder(seen, model.encoder, model.hidden, model.layers, model.activation)
        )
        return Body(made, make_core(model.core, made.size, model.core_size, model.core_layers))

    of_policy = make_body({name: spec for name, spec in seen.items() if name not in critic_only})
    of_critic = make_body(seen) if model.critic == "separate" or critic_only else None
    body = of_policy if of_critic is None else TwinBody(of_policy, of_critic)
    heads = Heads(
        of_policy.size,
        param_size,
        continuous,
        critic_size=None if of_critic is None else of_critic.size,
        deviation=model.deviation,
        initial_deviation=model.initial_deviation[0],
        policy=model.policy_head,
        value=model.value_head,
    )
    net = PolicyNet(body, heads, nvec if masked else ())
    for parameter in net.parameters():
        if parameter.dim() == 4:  # `net.to` fails for weights of five axes, which a user's part may have
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return net


class PolicyNet(nn.Module):
    """Body in its own dtype, heads in float32. `state_size` is S, 0 without a recurrent core.

    masked: sizes of the action's components if an action mask comes with the observations, else ().
    """

    def __init__(self, body: Body | TwinBody, heads: Heads, masked: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.masked = masked
        self.body = body
        self.heads = heads
        self.param_size = heads.param_size
        self.state_size = body.state_size

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (params [T, B, D], value [T, B], state after the last step [B, S]), all float32.

        obs: name -> [T, B, ...] as the environment delivers it. state: [B, S] float32 before the first step.
        first: [T, B] bool, the step begins an episode: the state is zeroed before it. cut: [T, B] bool, see cores.py.
        """
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features, state = self.body(seen, state, first, cut)
        each = features if isinstance(features, tuple) else (features,)
        params_TBD, value_TB = self.heads(*(x.float() for x in each))
        return self.mask(params_TBD, obs), value_TB, state

    def act(self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return params and the policy's own state [B, S'], without what only the critic sees; else as `forward`."""
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features_TBF, state = self.acting_body(seen, state, first)
        return self.mask(self.heads.params(features_TBF.float()), obs), state

    @property
    def acting_body(self) -> Body:
        """The body that actions depend on."""
        return self.body.policy if isinstance(self.body, TwinBody) else self.body

    def mask(self, params: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Remove the actions that the observations forbid from params [..., D], if there is a mask."""
        if not self.masked:
            return params
        logits = sum(self.masked)
        allowed = mask_logits(params[..., :logits], obs[ACTION_MASK], self.masked)
        return allowed if logits == params.shape[-1] else torch.cat((allowed, params[..., logits:]), -1)


class Body(nn.Module):
    """Encoder and, if any, recurrent core: the part that may be cast to bf16."""

    def __init__(self, encoder: Encoder, core: Core | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.size = encoder.size if core is None else core.size
        self.state_size = 0 if core is None else core.state_size

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (features [T, B, F] in the weights' dtype, state [B, S]); arguments as in `PolicyNet.forward`."""
        features_NF = self.encoder({name: x.flatten(0, 1) for name, x in obs.items()})
        features_TBF = features_NF.unflatten(0, first.shape)
        if self.core is None:
            return features_TBF, state
        out_TBF, state = self.core(features_TBF, state, first, cut)
        return out_TBF, state


class TwinBody(nn.Module):
    """A body for the policy and one for the critic, which learn nothing from each other.

    The state is that of the policy, then that of the critic.
    """

    def __init__(self, policy: Body, critic: Body) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self._sizes = [policy.state_size, critic.state_size]
        self.state_size = sum(self._sizes)

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the features of both and the state; see `Body.forward`."""
        states = state.split(self._sizes, -1) if self.state_size else (state, state)
        (of_policy, one), (of_critic, other) = (
            body(obs, before, first, cut)
            for body, before in zip((self.policy, self.critic), states, strict=True)
        )
        return (of_policy, of_critic), torch.cat((one, other), -1) if self.state_size else state
