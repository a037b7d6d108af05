"""Registry entries and hyperparameters of algorithms, readable without importing torch.

Hyperparameters (hypers) are the values of an algorithm that a controller may change during training.

`hyper` declares a hyperparameter as a field of a frozen dataclass. The docstring below the field is its help text. The
field becomes an option `--hypers.NAME`. If the run's algorithm uses the hyperparameter, each member has its own value.
A loss that lists the name (`Algorithm.loss_hypers`) reads `hypers["NAME"]`. Hyperparameters of a single algorithm are
declared in a separate dataclass:

    @dataclass(frozen=True)
    class PenaltyHypers:
        beta: float = hyper(1.0, bounds=(0.01, 100), legal=(0, 1e6), scale="log", tuned=True)
        \"\"\"Weight of the divergence.\"\"\"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pbt_rl.options.declare import Declared, option
from pbt_rl.registry import Recipe

Scale = Literal["linear", "log", "one_minus", "integer"]

OFF = 1e9
"""Value of a disabled limit, as in `--hypers.clip-value off`. The value is finite, because JSON has no infinity."""


def hyper(
    default: float,
    *,
    bounds: tuple[float, float],
    legal: tuple[float, float],
    scale: Scale,
    tuned: bool = False,
    common: bool = False,
) -> Any:
    """Declare a dataclass field that is a hyperparameter.

    bounds: default range of mutations, and range of the default prior.
    legal: range that the algorithm accepts. If it ends at OFF, the option also accepts the word `off`.
    scale: effect of a factor in a mutation. `linear`, `log`: multiply the value. `one_minus`: multiply 1 - value.
    `integer`: multiply the value and round, but change by at least 1. The default prior has the same scale.
    tuned: True if PBT changes this hyperparameter by default.
    common: True if plain `--help` lists the option.
    """
    low, high = legal
    declared: Declared = {"at_least": low, "at_most": high, "bounds": bounds, "scale": scale, "tuned": tuned}
    if common:
        declared["common"] = True
    if high == OFF:
        declared["off"] = "off"
    return option(default, **declared)


@dataclass(frozen=True)
class LearnerHypers:
    """Hyperparameters of losses, returns and optimisers, declared for all algorithms.

    Each algorithm lists the names that it reads. Controllers sample values in the order of the fields.
    """

    learning_rate: float = hyper(
        2.5e-4, bounds=(1e-6, 1e-2), legal=(0, 1), scale="log", tuned=True, common=True
    )
    """Step size of the optimiser."""
    entropy_coef: float = hyper(
        0.01, bounds=(1e-5, 0.3), legal=(0, 100), scale="log", tuned=True, common=True
    )
    """Weight of the entropy bonus."""
    value_coef: float = hyper(0.5, bounds=(0.05, 5.0), legal=(0, 100), scale="log", tuned=True)
    """Weight of the value loss."""
    clip_ratio: float = hyper(0.1, bounds=(0.01, 0.5), legal=(0, OFF), scale="log", tuned=True)
    """PPO: clip the probability ratio to 1 +- this value."""
    clip_value: float = hyper(1.0, bounds=(0.01, 10.0), legal=(0, OFF), scale="log", tuned=True)
    """PPO: clip the change of the (normalised) value estimate to +- this value."""
    max_grad_norm: float = hyper(0.5, bounds=(0.01, 100.0), legal=(1e-6, OFF), scale="log", tuned=True)
    """Maximum norm of the gradient."""
    gamma: float = hyper(0.99, bounds=(0.8, 0.9999), legal=(0, 1), scale="one_minus", common=True)
    """Discount per step."""
    gae_lambda: float = hyper(0.95, bounds=(0.5, 0.9999), legal=(0, 1), scale="one_minus")
    """Lambda of GAE and of V-trace."""
    kl_coef: float = hyper(0.0, bounds=(1e-3, 10.0), legal=(0, 1000), scale="log")
    """PPO: weight of the penalty KL(old || new), in addition to the clip."""
    adam_beta1: float = hyper(0.9, bounds=(0.5, 0.99), legal=(0, 0.99999), scale="one_minus")
    """Adam: decay rate of the gradient's mean."""
    adam_beta2: float = hyper(0.999, bounds=(0.9, 0.99999), legal=(0, 0.999999), scale="one_minus")
    """Adam: decay rate of the gradient's mean square."""
    rmsprop_alpha: float = hyper(0.99, bounds=(0.8, 0.9999), legal=(0, 0.999999), scale="one_minus")
    """RMSProp (a3c): decay rate of the gradient's mean square."""
    vtrace_rho: float = hyper(1.0, bounds=(0.1, 10.0), legal=(1e-3, OFF), scale="linear")
    """V-trace: upper limit of the importance weight of the TD error (rho)."""
    vtrace_c: float = hyper(1.0, bounds=(0.1, 10.0), legal=(0, OFF), scale="linear")
    """V-trace: upper limit of the importance weight of the trace (c)."""
    unroll: int = hyper(32, bounds=(2, 1024), legal=(1, 1_000_000), scale="integer", common=True)
    """Length of n-step returns and of backpropagation through time, at most --learner.rollout."""


JADERBERG_PBT: Mapping[str, object] = {
    "pbt.ready": "asynchronous",
    "pbt.period_frames": 4_000_000,
    "pbt.start_frames": 4_000_000,
    "pbt.exploit": "truncation",
    "pbt.replace_fraction": 0.2,
    "pbt.replace_gap": 0.0,
    "pbt.replace_gap_absolute": 0.0,
    "pbt.explore": "factors",
    "pbt.factors": (1.2, 0.8),
    "pbt.objective_episodes": 10,
}
"""PBT options of Jaderberg et al. 2017, section 4.1."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """Registry entry of an algorithm, available before the algorithm is imported."""

    module: str
    """`module:OBJECT` of the `Algorithm`"""
    help: str = ""
    """Help text, one sentence."""
    hypers: type | None = None
    """Dataclass of hyperparameters that only this algorithm reads."""
    options: Mapping[str, type] = field(default_factory=dict)
    """Config group -> dataclass of options that only this algorithm reads."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Name of a published setting (`--recipe`) -> its options."""
    recipes_are_for_it: bool = False
    """True if the recipes of environments are tuned for this algorithm."""


APPO = AlgorithmEntry(
    "pbt_rl.algos.appo:APPO", "clipped PPO on asynchronous rollouts.", recipes_are_for_it=True
)
A3C = AlgorithmEntry("pbt_rl.algos.a3c:A3C", "n-step actor-critic with RMSProp, as in GA3C.")


@dataclass(frozen=True)
class FunHypers:
    """Hyperparameters of the FuN worker."""

    intrinsic_coef: float = hyper(0.5, bounds=(0.25, 1.0), legal=(0, 100), scale="linear")
    """FuN: weight (alpha) of the worker's intrinsic reward for following the manager's goals."""
    worker_gamma: float = hyper(0.95, bounds=(0.8, 0.9999), legal=(0, 1), scale="one_minus")
    """FuN: discount per step of the worker. --hypers.gamma is the discount of the manager."""


FUN_RECIPES = {
    # FuN under PBT on Atari (Jaderberg et al. 2017, section 4.1 and appendix A.2): alpha from 0.25 to 1.
    # The ranges of learning rate and entropy cost are from section 5 of the FuN paper. The PBT paper has
    # populations of 10 to 80 members on Amidar, Gravitar, Ms. Pacman and Enduro. A step is 4 frames.
    "fun-atari": Recipe(
        "FuN under PBT, Jaderberg et al. 2017.",
        {
            "env": "atari/ms_pacman",
            "num_policies": 20,
            "algo": "fun",
            "train_for_frames": 1_000_000_000,
            "learner.rollout": 400,
            "learner.lr_schedule": "constant",
            "hypers.unroll": 400,
            "hypers.gamma": 0.99,
            "hypers.worker_gamma": 0.95,
            "hypers.learning_rate": 1e-4,
            "hypers.entropy_coef": 3e-4,
            "hypers.intrinsic_coef": 0.5,
            **JADERBERG_PBT,
            "pbt.tune": (
                "learning_rate=3.16e-5:3.16e-4",
                "entropy_coef=1e-4:1e-3",
                "intrinsic_coef=0.25:1",
            ),
        },
    ),
}
FUN = AlgorithmEntry(
    "pbt_rl.algos.fun:FUN",
    "hierarchical a3c: a manager sets goals for a worker.",
    hypers=FunHypers,
    recipes=FUN_RECIPES,
)


@dataclass(frozen=True)
class UnrealHypers:
    """Weights of UNREAL's auxiliary tasks."""

    pixel_control_coef: float = hyper(0.05, bounds=(1e-4, 1.0), legal=(0, 100), scale="log")
    """UNREAL: weight of pixel control."""
    reward_prediction_coef: float = hyper(1.0, bounds=(0.01, 10.0), legal=(0, 100), scale="log")
    """UNREAL: weight of reward prediction."""
    value_replay_coef: float = hyper(1.0, bounds=(0.01, 10.0), legal=(0, 100), scale="log")
    """UNREAL: weight of the value loss on replayed steps."""


UNREAL_RECIPES = {
    # UNREAL under PBT on DMLab (Jaderberg et al. 2017, section 4.1 and appendix A.2): 40 members with
    # asynchronous truncation selection. PBT tunes learning rate, entropy cost and unroll. A step is 4 frames.
    # The paper's gradient limit of 40 applies to losses summed over 20 steps; our losses are means.
    "unreal-dmlab": Recipe(
        "UNREAL under PBT, Jaderberg et al. 2017.",
        {
            "env": "dmlab/explore_goal_locations_small",
            "num_policies": 40,
            "algo": "unreal",
            "train_for_frames": 1_000_000_000,
            "learner.rollout": 50,
            "hypers.unroll": 20,
            "hypers.gamma": 0.99,
            "hypers.pixel_control_coef": 0.1,
            "hypers.reward_prediction_coef": 1.0,
            "hypers.value_replay_coef": 1.0,
            "hypers.max_grad_norm": 2.0,
            **JADERBERG_PBT,
            "pbt.tune": ("learning_rate=1e-5:5e-3", "entropy_coef=5e-4:1e-2", "unroll=5:50"),
        },
    ),
}
UNREAL = AlgorithmEntry(
    "pbt_rl.algos.unreal.unreal:UNREAL",
    "a3c with auxiliary tasks on a replay, for image observations.",
    hypers=UnrealHypers,
    recipes=UNREAL_RECIPES,
)
