"""What Sample Factory, Stable-Baselines3, CleanRL and Ray call the options, where the name here is not alike."""

from __future__ import annotations

OPTIONS: dict[str, str] = {
    name: option
    for option, names in {
        "actors": "num-workers num-rollout-workers num-env-runners",
        "devices": "device gpu gpus cuda num-gpus",
        "envs-per-unit": "num-envs n-envs num-envs-per-worker",
        "hypers.clip-ratio": "clip-coef clip-range ppo-clip-ratio",
        "hypers.clip-value": "ppo-clip-value clip-vloss clip-range-vf",
        "hypers.entropy-coef": "ent-coef entropy-coeff exploration-loss-coeff",
        "hypers.kl-coef": "kl-loss-coeff",
        "hypers.learning-rate": "lr",
        "hypers.value-coef": "vf-coef vf-loss-coeff value-loss-coeff",
        "learner.batch": "batch-size train-batch-size",
        "learner.epochs": "update-epochs n-epochs num-sgd-iter",
        "learner.lr-schedule-kl": "lr-schedule-kl-threshold desired-kl",
        "learner.minibatches": "num-batches-per-epoch",
        "learner.normalize-observations": "normalize-input",
        "learner.returns": "with-vtrace",
        "learner.rollout": "num-steps n-steps recurrence rollout-fragment-length",
        "mode": "async-rl serial-mode",
        "model.action-bounds": "continuous-tanh-scale",
        "model.core": "use-rnn rnn-type use-lstm",
        "model.core-layers": "rnn-num-layers",
        "model.core-size": "rnn-size lstm-size",
        "model.critic": "actor-critic-share-weights",
        "model.deviation": "adaptive-stddev",
        "model.encoder": "encoder-conv-architecture policy",
        "name": "experiment exp-name run-name",
        "num-policies": "population-size num-samples",
        "out": "train-dir log-dir storage-path",
        "pbt.enabled": "with-pbt",
        "pbt.period-frames": "perturbation-interval pbt-period-env-steps",
        "pbt.replace-fraction": "quantile-fraction",
        "pbt.start-frames": "burn-in-period pbt-start-mutation",
        "random-phases": "decorrelate-envs-on-one-worker init-at-random-ep-len",
        "pbt.tune": "hyperparam-mutations pbt-optimize-gamma",
        "resume": "restart-behavior",
        "save-every-frames": "save-milestones-sec save-freq",
        "train-for-frames": "total-timesteps train-for-env-steps",
        "track": "with-wandb",
        "units-per-actor": "worker-num-splits",
    }.items()
    for name in names.split()
}
"""Name elsewhere -> option of `pbt-rl train`."""
TWICE = {"value-loss-coeff", "vf-loss-coeff", "vf-coef"}
"""Weights of a value loss without the factor 1/2 of ours; `vf-coef` as Stable-Baselines3 has it, not CleanRL."""
