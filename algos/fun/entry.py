"""The entry of FuN, its hypers and its recipe. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.registry import Recipe

from ..hypers import JADERBERG_PBT, AlgorithmEntry, hyper


@dataclass(frozen=True)
class FunHypers:
    """Hypers of the worker."""

    intrinsic_coef: float = hyper(0.5, bounds=(0.25, 1.0), legal=(0, 100), scale="linear")
    """FuN: weight of the worker's reward for following goals (alpha)."""
    worker_gamma: float = hyper(0.95, bounds=(0.8, 0.9999), legal=(0, 1), scale="one_minus")
    """FuN: the worker's discount per step; --hypers.gamma is the manager's."""


RECIPES = {
    # FuN under PBT on Atari (Jaderberg et al. 2017, section 4.1 and appendix A.2): alpha from 0.25 to 1 there, learning
    # rate and entropy cost around the FuN paper's, from memory: its appendix was not at hand. The paper's populations
    # are of 10 to 80 members, its games Amidar, Gravitar, Ms. Pacman and Enduro. Steps are 4 frames.
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
ENTRY = AlgorithmEntry(
    ".fun.fun:FUN", "a manager sets goals for an a3c worker.", hypers=FunHypers, recipes=RECIPES
)
