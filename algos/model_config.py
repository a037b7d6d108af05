"""Options of the policy network. Like all option modules, this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pbt_rl.errors import require
from pbt_rl.options import option

ENCODERS = ("auto", "nature", "impala", "a3c", "mlp")
CORES = ("none", "gru", "lstm")
HEADS = ("linear",)


@dataclass(frozen=True)
class ModelConfig:
    """Network of each policy."""

    encoder: str = option("auto", choices=lambda: ENCODERS, custom="module:factory", common=True)
    """`auto` (Nature CNN for images, MLP for vectors), `nature`, `impala`, `a3c` (a small CNN), `mlp`, or a custom
    `module:factory`. The factory receives the observation spec and returns an nn.Module
    (docs/reference/network.md)."""
    hidden: tuple[int, ...] = option((512,), at_least=1, common=True)
    """Width of the encoder's output and of each layer of an MLP encoder. With an MLP encoder, several widths (`256
    128`) define its layers, from input to output."""
    layers: int = option(2, at_least=1)
    """Layers of an MLP encoder, if --model.hidden is one width."""
    activation: Literal["tanh", "elu", "relu"] = "tanh"
    """Activation after each layer of an MLP encoder."""
    core: str = option("none", choices=lambda: CORES, custom="module:factory", common=True)
    """Recurrent core after the encoder: `none`, `gru`, `lstm`, or a custom `module:factory`
    (docs/reference/network.md)."""
    core_size: int = option(256, at_least=1)
    """Width of the recurrent core."""
    last_action_reward: bool = False
    """Append the last action and reward to the encoder's output."""
    core_layers: int = option(1, at_least=1)
    """Stacked layers of a gru or lstm core."""
    critic: Literal["shared", "separate"] = "shared"
    """shared: policy and value use the same features. separate: the value has a separate encoder and core."""
    critic_only: str | None = None
    """Comma-separated names of observations for the critic only, such as privileged,sim.friction. The environment may
    declare further names. A name implies --model.critic separate."""
    action_std: Literal["free", "state"] = "free"
    """Std of continuous actions. free: a parameter, independent of the state. state: an output of the network."""
    initial_std: tuple[float, ...] = option((1.0,), at_least=0.01, at_most=7)
    """Initial std of continuous actions. Several values are assigned to members round-robin. Unit: half the action
    range (before tanh)."""
    action_bounds: Literal["clip", "tanh"] = "clip"
    """Treatment of continuous action bounds. clip: scale -1..1 to the bounds and clip; actions without bounds are left
    unchanged. tanh: squash samples into the bounds and correct their log-probabilities; all actions need bounds."""
    policy_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """Policy head, from features to action distribution parameters: `linear`, or a custom `module:factory`."""
    value_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """Value head, from features to the value: `linear`, or a custom `module:factory`."""

    def __post_init__(self) -> None:
        if isinstance(self.hidden, int):  # recipes of other packages may contain an int
            object.__setattr__(self, "hidden", (self.hidden,))
        layered = self.core_layers == 1 or self.core in ("gru", "lstm")
        require(layered, "model.core-layers", self.core_layers, "give --model.core gru or lstm")

    @property
    def depth(self) -> int:
        """Number of layers of an MLP encoder."""
        return len(self.hidden) if len(self.hidden) > 1 else self.layers

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the layers of an MLP encoder. The last width is also the output width of a built-in CNN."""
        return self.hidden if len(self.hidden) > 1 else self.hidden * self.layers

    @property
    def own_parts(self) -> tuple[str, ...]:
        """`module:factory` of each custom module."""
        parts = (self.encoder, self.core, self.policy_head, self.value_head)
        return tuple(part for part in parts if ":" in part)
