"""Defaults of runs on Gymnasium environments, and on vectors of one's own."""

from __future__ import annotations

from .arrays import is_grid, looks_like_a_picture
from .base import EnvSpec


def recipe(spec: EnvSpec) -> dict[str, object]:
    """Defaults of a run, by what is acted and seen: images, continuous control, grids, or short vectors."""
    images = [array for array in spec.obs.values() if array.dtype == "uint8" and len(array.shape) > 1]
    grids = [array for array in images if is_grid(array)]
    if len(images) > len(grids):
        return {"model.encoder": "impala" if grids else "auto", **_IMAGES}
    found = dict(_CONTINUOUS if spec.action.low else _DISCRETE)
    if grids:
        found |= _GRIDS
    if any(map(looks_like_a_picture, spec.obs.values())):
        del found["model.encoder"]  # that it be read as numbers has to be asked for
    elif not spec.action.low and any(array.boolean and len(array.shape) == 3 for array in spec.obs.values()):
        found |= PLANES
    return found


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

_GRIDS: dict[str, object] = {
    "model.hidden": 128,
    "learner.normalize_observations": True,
    "train_for_frames": 2_000_000,
    "pbt.period_frames": 100_000,
    "pbt.start_frames": 200_000,
}
"""What is different with grids of codes: they are read by an MLP, whatever their codes are."""

PLANES: dict[str, object] = {
    "model.critic": "separate",
    "model.activation": "elu",
    "learner.batch": 8192,
    "learner.minibatches": 8,
    "hypers.learning_rate": 5e-3,
    "hypers.entropy_coef": 0.01,
    "hypers.gamma": 0.99,  # of MinAtar's Freeway a reward is at least 27 steps away
    "hypers.gae_lambda": 0.95,
    "train_for_frames": 5_000_000,
    "pbt.period_frames": 250_000,
    "pbt.start_frames": 500_000,
}
"""What is different with the games of MinAtar: 0 and 1 in three axes, a plane for each kind of thing. The values of
PureJaxRL for them (its `examples/brax_minatar.ipynb`), with elu for relu. With one network of 128 tanh for policy and
value, two passes and a rate of 1e-3 Breakout ended at 6 (docs/lab/evidence.md)."""
