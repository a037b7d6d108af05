"""Hints for options and values that are misspelt, abbreviated, or from other trainers."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from pbt_rl.options.renamed import RENAMED


def spelt(name: str) -> str:
    """Normalise a name: lower case, `-` between words, no leading dashes."""
    return name.lstrip("-").replace("_", "-").lower()


def unknown(name: str, known: Collection[str], *, sign: str = "--") -> str:
    """Format an error for an unknown option, with a similar option if there is one.

    known: names of the valid options. sign: prefix of option names in the error.
    """
    typed = spelt(name)
    last = typed.rpartition(".")[2]
    option = OTHER_NAMES.get(last)
    now = RENAMED.get(typed) or RENAMED.get(f"{typed.removesuffix(last)}{last.removeprefix('no-')}")
    if now in known:
        return f"Unknown option {name}. Its name is now {sign}{now}"
    if last in ANSWERS and "num-policies" in known:
        return f"Unknown option {name}. {ANSWERS[last]}"
    if option in known:
        note = ", and double the value unless it is from CleanRL, because our value loss has the factor 1/2"
        return f"Unknown option {name}. Write {sign}{option}{note if last in TWICE else ''}"
    same = [k for k in sorted(known) if k.rpartition(".")[2] == last or k.replace(".", "-") == typed]
    close = same or difflib.get_close_matches(typed, known, n=3, cutoff=0.75)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(last, leaves, n=3, cutoff=0.75)]
    if close:
        return f"Unknown option {name}. Did you mean {' or '.join(sign + k for k in close)}?"
    return f"Unknown option {name}"


def assigned(word: str, known: Collection[str]) -> str:
    """Format an error for NAME=VALUE without dashes (as in Hydra). Return "" for any other word.

    NAME may be an option, the last part of only one option, or the name of an option in another trainer.
    """
    name, equals, value = word.partition("=")
    last = spelt(name).rpartition(".")[2]
    option = OTHER_NAMES.get(last, spelt(name))
    same = [k for k in known if k.rpartition(".")[2] == last]
    if option not in known and len(same) == 1:
        (option,) = same
    return (
        f"{word!r} does not belong to an option: write --{option} {value}"
        if equals and option in known
        else ""
    )


def meant(option: str, value: str, names: Collection[str]) -> str:
    """Format a hint at the probably intended value of an option. Return "" if there is no similar value.

    The hint is printed before the list of valid values. names: valid values.
    """
    if answer := OTHER_VALUES.get((option, value.lower())):
        return f"{answer}; "
    close = difflib.get_close_matches(value.lower(), names, n=1)
    return f"did you mean {close[0]}? " if close else ""


# -- names in other trainers ----------------------------------------------------------------------------------

OTHER_NAMES: dict[str, str] = {
    name: option
    for option, names in {
        "actors": "num-workers num-rollout-workers num-env-runners",
        "devices": "device gpu gpus cuda num-gpus",
        "envs-per-vector-env": "num-envs n-envs num-envs-per-worker",
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
        "model.action-std": "adaptive-stddev",
        "model.hidden": "fcnet-hiddens hidden-sizes net-arch encoder-mlp-layers hidden-dims",
        "model.initial-std": "initial-stddev init-noise-std init-std",
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
        "save-every-seconds": "copy-seconds",
        "train-for-frames": "total-timesteps train-for-env-steps",
        "track": "with-wandb",
        "vector-envs-per-actor": "worker-num-splits",
    }.items()
    for name in names.split()
}
"""Option of Sample Factory, Stable-Baselines3, CleanRL, RSL-RL or Ray, or former option of pbt_rl -> present option."""
_OFF_POLICY = "off-policy algorithms are not included; `pbt_rl.tune.run` tunes algorithms of other libraries"
_RAYS_MODE = "objectives are always maximised here: negate the reward in the environment"
OTHER_VALUES: dict[tuple[str, str], str] = {
    ("algo", "ppo"): "appo is PPO; --mode sync is the published version",
    ("algo", "impala"): "the closest is appo with --learner.returns vtrace",
    ("algo", "a2c"): "a3c with --mode sync is A2C",
    **{
        ("algo", name): _OFF_POLICY
        for name in ["sac", "dqn", "rainbow", "td3", "ddpg", "qrdqn", "c51", "crossq", "tqc", "r2d2", "apex"]
    },
    ("model.encoder", "cnn"): "nature is the usual CNN",
    ("model.encoder", "resnet"): "impala is a residual network",
    ("mode", "min"): _RAYS_MODE,
    ("mode", "max"): "objectives are always maximised here: leave out --mode max",
}
"""(option of pbt_rl, value of another trainer) -> remedy."""
TWICE = {"value-loss-coeff", "vf-loss-coeff", "vf-coef"}
"""Options of other trainers that multiply a value loss without the factor 1/2. The error for such an option advises to
double the value. The advice excludes CleanRL's `vf-coef`, because CleanRL's value loss has this factor.
"""

ANSWERS = {
    "metric": "Members are ranked by the objective that the environment reports; higher is better",
    "with-wandb": "Write --track wandb",
    "seeds": "Use `pbt-rl sweep --name NAME --seeds 0 1 2`",
}
"""Option of another trainer -> remedy, if the remedy is more than another name of the option."""
