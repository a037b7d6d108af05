"""Names elsewhere."""

from __future__ import annotations

FRAMES = "it counts emulator frames of each member, steps x frame skip (4 on Atari)"
HALF = "give twice the number, as our value loss has a factor of 1/2"
"""Sample Factory, RLlib, RSL-RL and Stable-Baselines3 take the whole mean square; CleanRL and Baselines the half."""
AS_THERE = "it counts frames of each member, as Sample Factory does: the number stays"
OTHER_NAMES: tuple[tuple[str, str, str], ...] = (
    ("env", "", "env-id env-name environment game task"),
    ("num-policies", "", "population population-size pop-size num-members members num-samples"),
    ("algo", "", "algorithm alg"),
    ("devices", "", "device gpu gpus cuda num-gpus"),
    ("seed", "", "random-seed"),
    ("name", "", "experiment experiment-name exp exp-name run-name"),
    ("out", "", "train-dir output output-dir out-dir log-dir logdir results-dir save-dir storage-path"),
    ("train-for-frames", FRAMES, "total-timesteps num-timesteps timesteps total-steps max-steps"),
    ("train-for-frames", AS_THERE, "train-for-env-steps"),
    ("train-for-frames", FRAMES, "total-frames frames max-frames num-frames"),
    ("train-for-seconds", "", "time-limit time-budget max-time max-seconds"),
    ("actors", "", "workers num-workers num-actors n-workers num-env-runners num-rollout-workers"),
    ("envs-per-unit", "", "num-envs n-envs envs num-envs-per-worker num-envs-per-env-runner"),
    ("units-per-actor", "", "worker-num-splits"),
    ("save-every-frames", "", "save-every save-freq checkpoint-freq save-milestones-sec"),
    ("save-every-seconds", "", "save-every-sec"),
    ("random-phases", "it is on", "decorrelate-envs-on-one-worker init-at-random-ep-len"),
    (
        "evaluate-every-frames",
        FRAMES,
        "evaluate-every eval-every eval-freq eval-interval evaluation-interval",
    ),
    ("overwrite", "", "force"),
    (
        "resume",
        "it is on: a run of the same --name goes on. To begin anew: --overwrite, which removes that run",
        "restart-behavior",
    ),
    ("show", "", "dry-run print-config"),
    ("config", "", "cfg conf config-file config-path"),
    ("mode", "sync, async or serial", "async-rl serial-mode synchronous"),
    ("pbt.enabled", "it is on if not switched off by --pbt.no-enabled", "with-pbt pbt use-pbt"),
    ("pbt.period-frames", AS_THERE, "pbt-period-env-steps"),
    ("pbt.period-frames", FRAMES, "perturbation-interval pbt-interval"),
    ("pbt.start-frames", AS_THERE, "pbt-start-mutation"),
    ("pbt.start-frames", FRAMES, "burn-in-period burn-in warmup"),
    ("pbt.replace-fraction", "", "pbt-replace-fraction quantile-fraction truncation"),
    ("pbt.mutation-rate", "", "pbt-mutation-rate"),
    ("pbt.replace-gap", "", "pbt-replace-reward-gap"),
    ("pbt.replace-gap-absolute", "", "pbt-replace-reward-gap-absolute"),
    ("pbt.tune", "", "hyperparam-mutations tune hyperparam-bounds pbt-optimize-gamma"),
    ("hypers.learning-rate", "", "lr alpha step-size"),
    ("hypers.entropy-coef", "", "ent-coef entropy-coeff entropy-cost exploration-loss-coeff"),
    ("hypers.value-coef", HALF, "value-loss-coeff value-loss-coef vf-loss-coeff"),
    ("hypers.value-coef", f"CleanRL's stays; Stable-Baselines3's: {HALF}", "vf-coef"),
    ("hypers.value-coef", "our loss is a mean over steps, not a sum", "baseline-cost"),
    ("hypers.clip-ratio", "", "clip clip-coef clip-range clip-param ppo-clip-ratio"),
    ("hypers.clip-value", "", "ppo-clip-value clip-range-vf vf-clip-param clip-vloss"),
    ("hypers.max-grad-norm", "", "grad-clip grad-norm"),
    ("hypers.gamma", "", "discount discounting discount-factor"),
    ("hypers.gae-lambda", "", "lambda lam gae"),
    ("learner.batch", "steps of each policy", "batch-size train-batch-size"),
    ("learner.minibatches", "", "num-minibatches n-minibatches num-batches-per-epoch"),
    ("learner.epochs", "", "num-epochs n-epochs update-epochs num-sgd-iter ppo-epochs"),
    (
        "learner.rollout",
        "",
        "rollout-length rollout-fragment-length num-steps n-steps unroll-length recurrence",
    ),
    ("learner.lr-schedule-kl", "", "lr-schedule-kl-threshold desired-kl"),
    ("learner.returns", "gae or vtrace", "with-vtrace use-vtrace vtrace"),
    ("learner.normalize-returns", "", "norm-reward"),
    ("learner.normalize-observations", "for images learner.normalize-images", "normalize-input norm-obs"),
    ("model.core", "none, gru or lstm", "use-rnn rnn rnn-type use-lstm lstm recurrent"),
    ("model.core-size", "", "rnn-size lstm-size"),
    ("model.core-layers", "", "rnn-num-layers lstm-layers num-rnn-layers"),
    ("model.critic", "shared or separate", "actor-critic-share-weights vf-share-layers"),
    ("model.deviation", "free or state", "adaptive-stddev free-log-std"),
    ("model.action-bounds", "clip or tanh", "squash tanh-actions squash-output continuous-tanh-scale"),
    ("hypers.kl-coef", "", "kl-loss-coeff kl-coeff"),
    ("model.encoder", "", "network net policy encoder-conv-architecture"),
    ("atari.frame-skip", "", "env-frameskip frameskip frame-skip"),
    ("atari.frame-stack", "", "env-framestack framestack frame-stack"),
    ("controller", "", "scheduler search-alg"),
)
"""(option of `pbt-rl train`, remark, names elsewhere)."""
OTHER_COMMANDS: dict[str, str] = {
    name: command
    for command, names in (
        ("train", "learn run"),
        ("eval", "enjoy play test evaluate"),
        ("watch", "monitor dashboard tensorboard"),
        ("runs", "list ls"),
    )
    for name in names.split()
}
"""Name elsewhere -> command of `pbt-rl`."""
NO_OPTION: dict[str, str] = {
    "pbt-target-objective": "what members are compared by is said by the environment, in info['true_objective'] at an "
    "episode's end (without it: by the score)",
}
"""Name elsewhere -> what is done here instead of an option."""
