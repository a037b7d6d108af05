"""The entry of UNREAL, its hypers and its recipe. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.registry import Recipe

from ..hypers import JADERBERG_PBT, AlgorithmEntry, hyper


@dataclass(frozen=True)
class UnrealHypers:
    """Weights of the auxiliary tasks."""

    pixel_control_coef: float = hyper(0.05, bounds=(1e-4, 1.0), legal=(0, 100), scale="log")
    """UNREAL: weight of pixel control."""
    reward_prediction_coef: float = hyper(1.0, bounds=(0.01, 10.0), legal=(0, 100), scale="log")
    """UNREAL: weight of reward prediction."""
    value_replay_coef: float = hyper(1.0, bounds=(0.01, 10.0), legal=(0, 100), scale="log")
    """UNREAL: weight of the value's loss on replayed steps."""


RECIPES = {
    # UNREAL under PBT on DMLab (Jaderberg et al. 2017, section 4.1 and appendix A.2): 40 members that choose by
    # truncation, each at its own times, and perturb learning rate, entropy cost and unroll. Steps are 4 frames. The
    # paper's limit of the gradient, 40, is of losses summed over 20 steps; ours are means.
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
ENTRY = AlgorithmEntry(
    ".unreal.unreal:UNREAL",
    "a3c with auxiliary tasks from a replay, for images.",
    hypers=UnrealHypers,
    recipes=RECIPES,
)
