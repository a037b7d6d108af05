"""Defaults of runs on Gymnasium environments, and on vectors of one's own."""

from __future__ import annotations

from .base import EnvSpec

SMALL = 36
"""The Nature CNN needs images of so many pixels a side. Smaller ones are seen by an MLP, beside larger ones by
IMPALA's network.
"""


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Defaults of a run, by what is acted and seen: images, continuous control, or short vectors."""
    if any(array.dtype == "uint8" and len(array.shape) >= 2 for array in spec.obs.values()):
        return {"model.encoder": _encoder(spec), **_IMAGES}
    return _CONTINUOUS if spec.action.low else _DISCRETE


def _encoder(spec: EnvSpec) -> str:
    """Return an encoder that can see the images of an environment, if it has any."""
    arrays = spec.obs.values()
    sides = [min(a.shape[1:]) for a in arrays if a.dtype == "uint8" and len(a.shape) == 3]
    if min(sides, default=SMALL) >= SMALL:
        return "auto"
    return "mlp" if max(sides) < SMALL else "impala"


_IMAGES: dict[str, object] = {"learner.rollout": 32, "learner.batch": 1024, "hypers.unroll": 32}


_DISCRETE: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": 64,
    "model.layers": 2,
    "learner.rollout": 32,
    "learner.batch": 1024,
    "learner.minibatches": 4,
    "learner.epochs": 4,
    "hypers.unroll": 32,
    "learner.lr_schedule": "linear",  # with a constant rate, members that had reached the top fell again
    "hypers.learning_rate": 1e-3,
    "hypers.entropy_coef": 0.005,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.98,
    "hypers.gae_lambda": 0.8,
    "train_for_frames": 500_000,
    "pbt.period_frames": 50_000,
    "pbt.start_frames": 100_000,
}

_CONTINUOUS: dict[str, object] = {
    "model.encoder": "mlp",
    "model.hidden": 64,
    "model.layers": 2,
    "learner.rollout": 64,
    "learner.batch": 2048,
    "learner.minibatches": 8,
    "learner.epochs": 8,
    "learner.normalize_observations": True,
    "hypers.unroll": 64,
    "hypers.learning_rate": 3e-4,
    "hypers.entropy_coef": 1e-4,
    "hypers.clip_ratio": 0.2,
    "hypers.gamma": 0.99,
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 2_000_000,
    "pbt.period_frames": 200_000,
    "pbt.start_frames": 400_000,
}
