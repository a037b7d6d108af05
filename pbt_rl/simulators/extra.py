"""Declares what samples in simulators on the learner's device: `EnvSpec.resident`, `--rows`."""

from __future__ import annotations

from pbt_rl.simulators.options import SimulatorOptions

NEEDS = ("pbt_rl.envs.resident", "pbt_rl.graphs")
FIELDS = SimulatorOptions
"""Options of a run."""
CHECKS = "pbt_rl.simulators.run:check"
"""See `run.resolved.ResolvedRun`."""
SIMULATORS = "pbt_rl.simulators.run"
CHECKS_ROWS = "pbt_rl.simulators.check"
"""See `learner.simulators.Simulators`, and `pbt-rl envs check`."""
ASKED = (
    "train --env tensors/pendulum --show",
    "train --env toy/identity --rows 4 --show",
)
"""Command lines that ask for it."""
TESTS = (
    "tests/envs/test_batched.py",
    "tests/envs/test_gymnax.py",
    "tests/envs/test_isaaclab.py",
    "tests/envs/test_rsl.py",
)
