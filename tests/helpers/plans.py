"""Resolved runs of a command line on any machine, and where they begin."""

from pbt_rl.config.command import parse_train
from pbt_rl.plan import Machine
from pbt_rl.run.memory import Start
from pbt_rl.run.resolved import ResolvedRun


def fresh(run: ResolvedRun) -> Start:
    """Return where a run begins that continues none."""
    return Start.fresh(run.plan, run.controller().initial(run.config.members))


HERE = Machine(2, 0)


def resolved(env: str, *options: str, machine: Machine = HERE) -> ResolvedRun:
    """Resolve `pbt-rl train --env ENV OPTIONS` as if this were the machine."""
    config = parse_train([f"--env={env}", *options])
    return ResolvedRun.resolve(config, machine)
