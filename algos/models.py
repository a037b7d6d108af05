"""Network of a policy: encoder -> optional recurrent core (together the *body*) -> heads.

    net = make_model({"obs": ((4, 84, 84), "uint8")}, 6, ModelConfig(core="gru"))
    params_TBD, value_TB, state_BS = net(obs, state_BS, first_TB)

Axes: T time, B rows, N = T * B, C channels, F features, S recurrent state, D distribution parameters.

The body computes in the dtype of its weights: `net.body.to(torch.bfloat16)` enables bf16. The heads and the recurrent
state stay float32. Built-in networks work under torch.func.functional_call and under vmap over stacked parameters,
because a forward pass stores nothing in a module. The recurrent state is an input and an output. Built-in weights are
initialised from torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .cores import Core, GruCore, LstmCore, StackedCore
from .distributions import ACTION_MASK, mask_logits
from .encoders import Encoder, Mlp, ObsEncoder, ObsShapes, orthogonal
from .model_config import ModelConfig
from .own_parts import UserCore, UserEncoder, UserHead

ActionStd = Literal["free", "state"]
LOG_STD_RANGE = (-5.0, 2.0)
"""Limits of log stds that are network outputs."""
FREE_LOG_STD_RANGE = (math.log(1e-4), math.log(1e4))
"""Limits of log stds that are parameters, suitable for actions of any scale (Sample Factory's range). The upper limit
is needed because the gradient of the entropy bonus never vanishes and would increase the std forever. Below the lower
limit, float32 cannot separate samples from a large mean."""


class Heads(nn.Module):
    """Policy and value heads: linear, or custom modules.

    size, critic_size: feature sizes of the policy and of the critic. critic_size None: the same features.
    param_size: D, number of distribution parameters.
    continuous: number of continuous action components. The log stds of these components are the last of the D
    parameters.
    action_std: `free`: log stds are parameters; `state`: log stds are functions of the features.
    initial_std: initial std of the components. If `action_std` is `state`, only a linear policy head starts with it.
    policy, value: `linear`, or `module:factory` (see own_parts.py).
    """

    def __init__(
        self,
        size: int,
        param_size: int,
        continuous: int,
        *,
        critic_size: int | None = None,
        action_std: ActionStd = "free",
        initial_std: float = 1.0,
        policy: str = "linear",
        value: str = "linear",
    ) -> None:
        super().__init__()
        assert param_size >= 2 * continuous, "each continuous component needs a mean and a log std"
        self.param_size = param_size
        free = continuous if action_std == "free" else 0
        self._limited = continuous - free
        self.policy = _head("policy-head", policy, size, param_size - free, 0.01, logits=not continuous)
        self.value = _head("value-head", value, size if critic_size is None else critic_size, 1, 1.0)
        start = math.log(initial_std)
        self.log_std = nn.Parameter(torch.full((free,), start)) if free else None
        if self._limited and isinstance(self.policy, nn.Linear):
            nn.init.constant_(self.policy.bias[-self._limited :], start)
        self.auxiliary: nn.Module | None = None
        """Additional heads for the losses of an algorithm. Acting does not use these heads."""

    def forward(self, features: Tensor, of_critic: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map features [..., F] float32 to params [..., D] and value [...].

        of_critic: separate features of the critic, if any.
        """
        params = self.params(features)
        return params, self.value(features if of_critic is None else of_critic).squeeze(-1)

    def params(self, features: Tensor) -> Tensor:
        """Map features [..., F] float32 to params [..., D]."""
        params: Tensor = self.policy(features)
        if self.log_std is not None:
            log_std = self.log_std.clamp(*FREE_LOG_STD_RANGE)
            params = torch.cat((params, log_std.expand(*params.shape[:-1], -1)), -1)
        elif self._limited:
            rest, log_std = params.split((self.param_size - self._limited, self._limited), -1)
            params = torch.cat((rest, log_std.clamp(*LOG_STD_RANGE)), -1)
        return params


def _head(part: str, kind: str, size: int, outputs: int, gain: float, *, logits: bool = False) -> nn.Module:
    if ":" in kind:
        return UserHead(part, kind, size, outputs, logits=logits)
    return orthogonal(nn.Linear(size, outputs), gain)


def make_core(kind: str, size: int, core_size: int, layers: int) -> Core | None:
    """Build a recurrent core for features of width `size`.

    kind: `gru`, `lstm`, a custom `module:factory`, or `none` (the result is None).
    core_size, layers: width and number of layers of a `gru` or `lstm`.

    Raises ValueError if a custom core is unusable.
    """
    if ":" in kind:
        return UserCore(kind, size)
    if kind == "none":
        return None
    make: Callable[[int, int], Core] = {"gru": GruCore, "lstm": LstmCore}[kind]
    return make(size, core_size) if layers == 1 else StackedCore(make, size, core_size, layers)


class NetInputs(NamedTuple):
    """Inputs and action sizes that a network is built for."""

    obs: ObsShapes
    """Shapes and dtypes of the observations, as the network receives them."""
    stacks: Mapping[str, int]
    """Name of an observation -> number of stacked frames, 1 for none. The newest frame is the last channel."""
    nvec: tuple[int, ...]
    """Sizes of the discrete components of an action."""
    continuous: int = 0
    """Number of continuous components of an action."""
    core_size: int = 256
    """Width of a recurrent core, from the options."""


def make_model(
    obs_shapes: ObsShapes,
    param_size: int,
    model: ModelConfig,
    *,
    continuous: int = 0,
    critic_only: tuple[str, ...] = (),
    nvec: tuple[int, ...] = (),
) -> PolicyNet:
    """Build a policy network with initialised weights, float32, convolutions channels-last.

    Encoding depends on the kind of an observation:

        image        uint8 (C, H, W)    the CNN of `model.encoder`; an MLP if `model.encoder` is `mlp`
        text         int32 (L,)         `WordEncoder`
        LAST         name, float32      appended to the features (Espeholt et al. 2018, Figure 3)
        ACTION_MASK  name               not encoded; masks the logits (`mask_logits`)
        other        flattened          MLP

    A custom encoder gets all observations except ACTION_MASK instead.

    param_size: D, the number of logits, means and log stds, in this order.
    model: only the first value of `initial_std` is used.
    continuous: number of continuous action components.
    critic_only: names of observations hidden from the policy. The critic then has a separate body.
    nvec: sizes of the discrete action components, required with an ACTION_MASK.

    Raises ValueError if the encoder does not support these observations, if `model.hidden` has several widths without
    an MLP, or if a custom module is unusable.
    """
    masked = ACTION_MASK in obs_shapes
    assert not masked or sum(nvec) == param_size - 2 * continuous, "a mask has one number for each logit"
    seen = {name: spec for name, spec in obs_shapes.items() if name != ACTION_MASK}

    def make_body(seen: ObsShapes) -> Body:
        made = (
            UserEncoder(model.encoder, seen)
            if ":" in model.encoder
            else ObsEncoder(seen, model.encoder, model.widths, model.activation)
        )
        if len(model.hidden) > 1 and not any(isinstance(part, Mlp) for part in made.modules()):
            given = " ".join(map(str, model.hidden))
            raise ValueError(
                f"{given} (--model.hidden) are the layers of an MLP encoder, but this network has none: give one width"
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
        action_std=model.action_std,
        initial_std=model.initial_std[0],
        policy=model.policy_head,
        value=model.value_head,
    )
    net = PolicyNet(body, heads, nvec if masked else ())
    for parameter in net.parameters():
        if parameter.dim() == 4:  # `net.to` fails for 5-D weights, which a custom module may have
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return net


class PolicyNet(nn.Module):
    """Policy network: body in a configurable dtype, heads in float32.

    masked: sizes of the discrete action components if the observations include an action mask, else ().
    state_size: S, 0 without a recurrent core.
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

        obs: name -> [T, B, ...], after normalisation.
        state: [B, S] float32 before the first step.
        first: [T, B] bool: the step starts an episode. The state is zeroed before this step.
        cut: [T, B] bool: gradients stop before the step (see cores.py). None: they flow back to the first step.
        """
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features, state = self.body(seen, state, first, cut)
        each = features if isinstance(features, tuple) else (features,)
        params_TBD, value_TB = self.heads(*(x.float() for x in each))
        return self.mask(params_TBD, obs), value_TB, state

    def act(self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return (params [T, B, D], state after the last step) of the policy, without the critic.

        Both states: [B, `acting_body.state_size`]. Other arguments: see `forward`.
        """
        seen = {name: x for name, x in obs.items() if name != ACTION_MASK}
        features_TBF, state = self.acting_body(seen, state, first)
        return self.mask(self.heads.params(features_TBF.float()), obs), state

    @property
    def acting_body(self) -> Body:
        """Body that the actions depend on."""
        return self.body.policy if isinstance(self.body, TwinBody) else self.body

    def mask(self, params: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Mask the logits of forbidden actions in params [..., D], if the observations include a mask."""
        if not self.masked:
            return params
        logits = sum(self.masked)
        allowed = mask_logits(params[..., :logits], obs[ACTION_MASK], self.masked)
        return allowed if logits == params.shape[-1] else torch.cat((allowed, params[..., logits:]), -1)


class Body(nn.Module):
    """Encoder and optional recurrent core. Only this part of a network may be cast to bf16."""

    def __init__(self, encoder: Encoder, core: Core | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.core = core
        self.size = encoder.size if core is None else core.size
        self.state_size = 0 if core is None else core.state_size

    def forward(
        self, obs: Mapping[str, Tensor], state: Tensor, first: Tensor, cut: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (features [T, B, F] in the weights' dtype, state [B, S]). Arguments: see `PolicyNet.forward`."""
        features_NF = self.encoder({name: x.flatten(0, 1) for name, x in obs.items()})
        features_TBF = features_NF.unflatten(0, first.shape)
        if self.core is None:
            return features_TBF, state
        out_TBF, state = self.core(features_TBF, state, first, cut)
        return out_TBF, state


class TwinBody(nn.Module):
    """Separate bodies of policy and critic, without shared weights.

    The state is the concatenation of the policy's state and the critic's state.
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
        """Return ((policy features, critic features), state); see `Body.forward`."""
        states = state.split(self._sizes, -1) if self.state_size else (state, state)
        (of_policy, one), (of_critic, other) = (
            body(obs, before, first, cut)
            for body, before in zip((self.policy, self.critic), states, strict=True)
        )
        return (of_policy, of_critic), torch.cat((one, other), -1) if self.state_size else state
