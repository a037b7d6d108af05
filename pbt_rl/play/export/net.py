"""Trained member as one torch module from observations to actions, with normalisation and scaling.

Axes: N observations, A action components, D distribution parameters, S recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from pbt_rl.algos.distributions import Distribution
from pbt_rl.algos.models import PolicyNet
from pbt_rl.algos.normalizers import Normalizers, of_normalizers, return_scale
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.envs.base import ActionSpec, EnvSpec
from pbt_rl.learner.build import build_distribution, build_net, normalized_obs, obs_layouts

STATE_IN, STATE_OUT = "state_in", "state_out"
RESERVED = ("action", "params", "value", STATE_IN, STATE_OUT)
"""Names of the outputs, and of the input for the recurrent state. No input for an observation has such a name."""
_ONE = slice(0, 1)


@dataclass(frozen=True)
class Port:
    """Input of the exported network. shape: shape of one observation. frames: number of stacked frames, at least 1.

    obs: name of the observation in the environment. Empty for the recurrent state.
    name: `obs`, with the prefix `obs.` if RESERVED contains `obs`. For the recurrent state: STATE_IN.
    given: description of the environment's array if pbt_rl converts the array to another format, otherwise "".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    frames: int = 1
    obs: str = ""
    given: str = ""

    def zeros(self, rows: int) -> Tensor:
        """Return zeros [rows, *shape]."""
        return torch.zeros((rows, *self.shape), dtype=getattr(torch, self.dtype))

    def random(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return random numbers [rows, *shape] in the usual range of the dtype."""
        if self.dtype == "float32":
            return torch.randn((rows, *self.shape), generator=generator)
        high = 256 if self.dtype == "uint8" else 1000
        return torch.randint(0, high, (rows, *self.shape), generator=generator).to(getattr(torch, self.dtype))


class ExportedPolicy(nn.Module):
    """Exported policy: (observations, state) -> (action, params, value, next state).

    observations: one array [N, ...] per observation.
    state: [N, S], zeros at the start of an episode. Only recurrent policies have this input and output.
    action: [N, A], the most probable indices and the means. If all components are discrete: int32. Otherwise: float32,
    first the indices of the discrete components, then the continuous components within the bounds of the action space.
    params: [N, D], first the logits of the discrete components, then means, then log stds.
    value: [N], in units of reward. Missing if `acts_only`, because the critic then has other inputs than the actor.

    Floats are float32, even after training with bfloat16.

    inputs: inputs of `forward`, in order. The recurrent state is the last input.
    normalized: name -> number of elements, for each normalised observation.
    statistics: name -> statistics of the normalisers, without the axis of policies.
    """

    def __init__(
        self,
        net: PolicyNet,
        inputs: tuple[Port, ...],
        action: ActionSpec,
        distribution: Distribution,
        normalized: Mapping[str, int],
        statistics: Mapping[str, Tensor],
        *,
        acts_only: bool = False,
    ) -> None:
        super().__init__()
        self.net, self.inputs, self.action = net, inputs, action
        self.distribution = distribution
        self.acts_only = acts_only
        self.recurrent = any(port.name == STATE_IN for port in inputs)
        self._normalizers = Normalizers(dict(normalized), returns=False)  # only `normalize_obs` is used
        self._names = tuple(statistics)
        for number, name in enumerate(self._names):  # a buffer's name has no dot
            self.register_buffer(f"statistic_{number}", statistics[name].unsqueeze(0))

    @property
    def normalises(self) -> bool:
        """True if the module normalises observations."""
        return bool(self._normalizers.obs_sizes)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs of `forward`."""
        return (*RESERVED[: 2 if self.acts_only else 3], *((STATE_OUT,) if self.recurrent else ()))

    def statistics(self) -> dict[str, Tensor]:
        """Return the statistics of the normalisers: name -> [1, ...]."""
        return {name: getattr(self, f"statistic_{n}") for n, name in enumerate(self._names)}

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs in the order of `outputs`. arrays: inputs, in the order of `inputs`."""
        rows = arrays[0].shape[0]
        named = {port.obs: x for port, x in zip(self.inputs, arrays, strict=True)}
        state = named.pop("") if self.recurrent else arrays[0].new_zeros((rows, 0), dtype=torch.float32)
        first = arrays[0].new_zeros((1, rows), dtype=torch.bool)
        statistics = self.statistics()
        obs = self._normalizers.normalize_obs(statistics, _ONE, {k: x[None, None] for k, x in named.items()})
        seen = {k: x[0] for k, x in obs.items()}
        if self.acts_only:
            params, state = self.net.act(seen, state, first)
            values = []
        else:
            params, value, state = self.net(seen, state, first)
            values = [value[0] * return_scale(statistics, _ONE)]
        action = self.distribution.greedy(params[0])
        return (action, params[0], *values, *([state] if self.recurrent else []))


def exported_policy(config: Config, spec: EnvSpec, pack: Pack) -> ExportedPolicy:
    """Build the exported policy of a one-policy pack."""
    net = build_net(spec, config.model, config.algorithm)
    weights = pack.named_weights(0)
    for name, parameter in net.named_parameters():  # `state_dict` has buffers too, and tied weights twice
        parameter.data.copy_(weights[name])
    inputs = _ports(spec)
    state_size = net.acting_body.state_size if spec.critic else net.state_size
    if state_size:
        inputs.append(Port(STATE_IN, (state_size,), "float32"))
    normalized = {k: size for k, size in normalized_obs(config, spec).items() if k not in spec.critic}
    distribution = build_distribution(spec, config.model)
    statistics = of_normalizers({k: v[0].to("cpu", copy=True) for k, v in pack.state.items()})
    ports = tuple(inputs)
    policy = ExportedPolicy(
        net, ports, spec.action, distribution, normalized, statistics, acts_only=bool(spec.critic)
    )
    return policy.eval().requires_grad_(False)


def _ports(spec: EnvSpec) -> list[Port]:
    """Return one input per observation of the actor. Names in RESERVED get the prefix `obs.`."""
    layouts = {name: layout for name, layout in obs_layouts(spec).items() if name not in spec.critic}
    ports = list[Port]()
    taken = {*RESERVED, *(name for name in layouts if name not in RESERVED)}
    for name, layout in layouts.items():
        shown = name
        while name in RESERVED and shown in taken:
            shown = f"obs.{shown}"
        taken.add(shown)
        ports.append(Port(shown, *layout.seen, layout.stack, obs=name, given=spec.obs[name].given))
    return ports


def _bounds(given: tuple[float, ...]) -> list[float | None]:
    """Return the bounds with None instead of infinities, because JSON has no infinities."""
    return [bound if isfinite(bound) else None for bound in given]


def interface(policy: ExportedPolicy) -> dict[str, Any]:
    """Return a description of the policy's inputs and outputs, as JSON types."""
    action = policy.action
    return {
        "inputs": [
            {"name": p.name, "shape": ["N", *p.shape], "dtype": p.dtype, "frames": p.frames}
            for p in policy.inputs
        ],
        "outputs": list(policy.outputs),
        "action": {"nvec": list(action.nvec), "low": _bounds(action.low), "high": _bounds(action.high)},
    }
