"""Resolved runs of a command line on any machine."""

from pbt_rl.cli.train import parse_train
from pbt_rl.run.plan import Machine
from pbt_rl.run.resolved import ResolvedRun


def resolved(env: str, *options: str, machine: Machine) -> ResolvedRun:
    """Resolve `pbt-rl train --env ENV OPTIONS` as if this were the machine."""
    config, _ = parse_train([f"--env={env}", *options])
    return ResolvedRun.resolve(config, machine)
