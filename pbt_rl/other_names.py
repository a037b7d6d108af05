"""What Sample Factory, Stable-Baselines3, CleanRL and Ray call things, where the name here is not alike."""

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

ANSWERS = {
    "metric": "members are compared by the objective that the environment reports; more is better",
    "seeds": "`pbt-rl sweep --name NAME --seeds 0 1 2` trains the same with several seeds",
}
"""Option that has none for it -> what to do instead."""
_OFF_POLICY = "there are no off-policy algorithms; `pbt_rl.tune.run` tunes those of other libraries"
_RAYS_MODE = "it is Ray's, and here more is better: let the environment give the negative as its reward"
VALUES: dict[tuple[str, str], str] = {
    ("algo", "ppo"): "appo is PPO, with --mode sync as it was published",
    ("algo", "impala"): "appo with --learner.returns vtrace is near it",
    ("algo", "a2c"): "a3c with --mode sync is A2C",
    **{
        ("algo", name): _OFF_POLICY
        for name in ["sac", "dqn", "rainbow", "td3", "ddpg", "qrdqn", "c51", "crossq", "tqc", "r2d2", "apex"]
    },
    ("model.encoder", "cnn"): "nature is the usual CNN",
    ("model.encoder", "resnet"): "impala is a residual network",
    ("mode", "min"): _RAYS_MODE,
    ("mode", "max"): "it is Ray's, and here more is better: leave it out",
}
"""(option, value elsewhere) -> what to do instead."""
TUNE = {
    "num_samples": "num_members",
    "population_size": "num_members",
    "perturbation_interval": "period",
    "quantile_fraction": "quantile",
    "perturbation_factors": "factors",
    "custom_explore_fn": "explore",
    "num_workers": "workers",
    "max_concurrent_trials": "slots",
    "storage_path": "folder",
    "local_dir": "folder",
    "callbacks": "on_progress",
    "verbose": "progress",
    "num_iterations": "steps",
    "training_iteration": "steps",
    "stop": "steps",
}
"""Ray's argument -> that of `pbt_rl.tune.run`."""
TUNE_ANSWERS = {
    "metric": "`evaluate` returns the one number by which members are compared",
    "mode": "more is better: let `evaluate` return the negative of what should be small",
    **dict.fromkeys(
        ("config", "param_space", "hyperparam_mutations", "space"),
        'the space is the second argument, such as {"lr": (1e-5, 1e-1)}',
    ),
    "scheduler": "the second argument is a space, which PBT tunes, or a controller",
}
"""Argument of Ray that has none for it -> what to do instead."""
