"""Unknown names of options and values: misspelt, shortened, or those of other trainers."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def spelt(name: str) -> str:
    """Return a name in the usual spelling: small letters, `-` between words, no leading dashes."""
    return name.lstrip("-").replace("_", "-").lower()


def unknown(name: str, known: Collection[str], *, sign: str = "--") -> str:
    """Return one line about an unknown option, with the right one if it is recognised. known: names as typed."""
    typed = spelt(name)
    last = typed.rpartition(".")[2]
    option = OTHER_NAMES.get(last)
    if last in ANSWERS and "num-policies" in known:
        return f"{name} is no option: {ANSWERS[last]}"
    if option in known:
        remark = ", and twice the number unless it is CleanRL's: our value loss has the factor 1/2"
        return f"{name} is no option: write {sign}{option}{remark if last in TWICE else ''}"
    same = [k for k in sorted(known) if k.rpartition(".")[2] == last or k.replace(".", "-") == typed]
    close = same or difflib.get_close_matches(typed, known, n=3, cutoff=0.75)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(last, leaves, n=3, cutoff=0.75)]
    if close:
        return f"{name} is no option: did you mean {' or '.join(sign + k for k in close)}?"
    return f"{name} is no option"


def assigned(word: str, known: Collection[str]) -> str:
    """Return the error for NAME=VALUE without dashes, as Hydra has it; "" if NAME is not an option."""
    name, equals, value = word.partition("=")
    option = OTHER_NAMES.get(spelt(name).rpartition(".")[2], spelt(name))
    return f"{word!r} belongs to no option: write --{option} {value}" if equals and option in known else ""


def meant(option: str, value: str, names: Collection[str]) -> str:
    """Return a hint at the value that is probably meant, to precede the list of names; "" without one."""
    if answer := OTHER_VALUES.get((option, value.lower())):
        return f"{answer}; "
    close = difflib.get_close_matches(value.lower(), names, n=1)
    return f"did you mean {close[0]}? " if close else ""


# -- names elsewhere ------------------------------------------------------------------------------------------

OTHER_NAMES: dict[str, str] = {
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
        "model.initial-deviation": "initial-stddev init-noise-std init-std",
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
"""Name of an option in Sample Factory, Stable-Baselines3, CleanRL or Ray -> its name here."""
_OFF_POLICY = "there are no off-policy algorithms; `pbt_rl.tune.run` tunes those of other libraries"
_RAYS_MODE = "it is Ray's, and here more is better: let the environment give the negative as its reward"
OTHER_VALUES: dict[tuple[str, str], str] = {
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
"""(option, value of another trainer) -> the remedy."""
TWICE = {"value-loss-coeff", "vf-loss-coeff", "vf-coef"}
"""Weights of a value loss without the factor 1/2 of ours; `vf-coef` is that of Stable-Baselines3, not CleanRL's."""

ANSWERS = {
    "metric": "members are compared by the objective that the environment reports; more is better",
    "with-wandb": "write --track wandb",
    "seeds": "`pbt-rl sweep --name NAME --seeds 0 1 2` trains the same with several seeds",
}
"""Option of another trainer without a counterpart -> the remedy."""
