"""A published command line for DeepMind Lab."""

from __future__ import annotations

from pbt_rl.registry import Recipe

RECIPES = {
    # Sample Factory's published command line for DMLab-30 with four agents, option by option. Its numbers of processes
    # (90 workers of 12 environments, core affinity) are planned from the machine here; experience is decorrelated at
    # the start by the units' different levels. Returns are V-trace's, and the network sees the last action and reward
    # (unlike there), as in every run on DMLab.
    "dmlab30-pbt": Recipe(
        "Sample Factory's DMLab-30 with four agents.",
        {
            "env": "dmlab30",
            "num_policies": 4,
            "algo": "appo",
            "train_for_frames": 10_000_000_000,
            "model.encoder": "impala",
            "model.hidden": 512,
            "model.core": "lstm",
            "model.core_size": 512,
            "learner.rollout": 32,
            "learner.batch": 2048,
            "learner.epochs": 1,
            "learner.minibatches": 1,
            "learner.max_policy_lag": 35,
            "hypers.unroll": 32,
            "hypers.gamma": 0.99,
            "hypers.learning_rate": 1e-4,
            "hypers.entropy_coef": 0.003,
            "hypers.value_coef": 1.0,  # its 0.5, of a value loss without our factor of 1/2
            "hypers.max_grad_norm": 1e9,  # no limit
            "dmlab.actions": "extended",
            "dmlab.reward_unit": 5.0,
            "dmlab.renderer": "software",
            "dmlab.one_level_per_unit": True,
            "pbt.period_frames": 10_000_000,
            "pbt.start_frames": 100_000_000,
            "pbt.replace_gap": 0.05,
            "pbt.replace_gap_absolute": 5.0,
            "pbt.replace_errors": 0.0,
            "pbt.tune": ("learning_rate", "entropy_coef", "value_coef", "clip_ratio", "clip_value"),
        },
    ),
}
