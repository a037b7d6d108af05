"""Options of the network of every policy. Without torch, as all options are."""

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
    """The network of every policy."""

    encoder: str = option("auto", choices=lambda: ENCODERS, custom="module:factory", common=True)
    """`auto` (Nature CNN for images, MLP for vectors), `nature`, `impala`, `a3c` (a small CNN), `mlp`, or your own
    `module:factory`, which is called with the observation's spec and returns an nn.Module
    (docs/reference/network.md)."""
    hidden: int = option(
        512,
        at_least=1,
        single="--model.hidden is one width, --model.layers the number of layers",
        common=True,
    )
    """Width of the encoder's output."""
    layers: int = option(2, at_least=1)
    """Hidden layers of an MLP encoder."""
    activation: Literal["tanh", "elu", "relu"] = "tanh"
    """Behind each layer of an MLP encoder."""
    core: str = option("none", choices=lambda: CORES, custom="module:factory", common=True)
    """Recurrent core after the encoder, or your own `module:factory` (docs/reference/network.md)."""
    core_size: int = option(256, at_least=1)
    """Width of the recurrent core."""
    last_action_reward: bool = False
    """Show the network its last action and reward, behind the encoder."""
    core_layers: int = option(1, at_least=1)
    """gru, lstm: so many, one above another."""
    critic: Literal["shared", "separate"] = "shared"
    """shared: policy and value read the same features. separate: the value has an encoder and a core of its own."""
    critic_only: str | None = None
    """Names of observations that only the critic sees, comma-separated, such as privileged,sim.friction; the critic is
    then `separate`. None: those that the environment declares, which these are added to."""
    deviation: Literal["free", "state"] = "free"
    """Deviations of continuous actions. free: parameters, the same in every state. state: an output of the network."""
    initial_deviation: tuple[float, ...] = option((1.0,), at_least=0.01, at_most=7)
    """Deviations of continuous actions that members begin with, one after another in turns, in halves of the range that
    bounds them; with tanh before the bend."""
    action_bounds: Literal["clip", "tanh"] = "clip"
    """How continuous actions keep to their bounds. clip: -1..1 of the policy is scaled to them, draws beyond are cut
    off, and without bounds they are left as they are. tanh: draws are bent into the bounds, which it needs, and learned
    from with the density of the bent ones."""
    policy_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """What turns features into the parameters of the actions: `linear`, or your own."""
    value_head: str = option("linear", choices=lambda: HEADS, custom="module:factory")
    """What turns features into the value: `linear`, or your own network."""

    def __post_init__(self) -> None:
        layered = self.core_layers == 1 or self.core in ("gru", "lstm")
        require(layered, "model.core-layers", self.core_layers, "give --model.core gru or lstm")

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Parts of the user's own, as module:factory."""
        parts = (self.encoder, self.core, self.policy_head, self.value_head)
        return tuple(part for part in parts if ":" in part)
