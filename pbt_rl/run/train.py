"""Start or resume of a run in its folder.

`train_on` locks the folder and selects the fleet. `Supervisor.__init__` builds the other parts of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pbt_rl.config import Config
from pbt_rl.display.trackers.outlets import check as check_trackers
from pbt_rl.errors import RunFailed
from pbt_rl.plan import Machine
from pbt_rl.processes.child import Waiting
from pbt_rl.record.checkpoint_writer import remove_unfinished
from pbt_rl.record.environment_check import check_environment
from pbt_rl.record.run_lock import lock_run_folder
from pbt_rl.run.callbacks import Callbacks
from pbt_rl.run.fleet import ProcessFleet, StartsFleet
from pbt_rl.run.limits import check_start
from pbt_rl.run.resolved import ResolvedRun, value_table
from pbt_rl.run.resuming import find_continued, may_resume
from pbt_rl.run.supervisor import Supervisor
from pbt_rl.run.warm_start import WarmStart

if TYPE_CHECKING:
    from pbt_rl.run.nodes.node_fleet import OverNodes


def train(
    config: Config,
    callbacks: Callbacks | None = None,
    spare: Waiting[Any, Any] | None = None,
    shaping: Sequence[str] = (),
) -> int:
    """Train a population and return the exit code. Arguments and errors: see `train_on`."""
    with _machines(config) as cluster:
        return train_on(cluster, config, callbacks, spare, shaping)


def resolve(config: Config) -> ResolvedRun:
    """Plan a run, and do not start it. Raises ConfigError or EnvSetupError if the run cannot be planned."""
    with _machines(config) as cluster:
        return _resolved(cluster, config)


def _machines(config: Config) -> AbstractContextManager[OverNodes | None]:
    """Connect to the cluster of --nodes. Without --nodes, the context yields None.

    Raises ConfigError if Ray is not installed or the cluster cannot be reached.
    """
    if not config.nodes:
        return nullcontext()
    from pbt_rl.run.nodes.node_fleet import connected  # noqa: PLC0415 - Ray is loaded with it

    return connected(config)


def _resolved(cluster: OverNodes | None, config: Config) -> ResolvedRun:
    return ResolvedRun.resolve(config, Machine.here()) if cluster is None else cluster.resolve(config)


def train_on(
    cluster: OverNodes | None,
    config: Config,
    callbacks: Callbacks | None = None,
    spare: Waiting[Any, Any] | None = None,
    shaping: Sequence[str] = (),
) -> int:
    """Train a population and return the exit code: 0, or 128 + the number of the signal that ended the run.

    If the run exists, continue from its last checkpoint. A run that was never saved starts again. A run that has
    reached its end is not continued. With --overwrite, a new run replaces an existing run.
    cluster: machines for the processes of the run. None: this machine. spare: idle process for the first learner.
    shaping: NAME=VALUE entries of reward weights that a resumed run sets in each member, even if PBT has changed them.
    Raises ConfigError or EnvSetupError if the user must fix the cause, RunFailed if the run fails, and the exception of
    a callback after the end of the run.
    """
    resolved = _resolved(cluster, config)
    here = resolved if cluster is None else replace(resolved, plan=replace(resolved.plan, packs=()))
    check_start(here)
    check_trackers(config)
    resolved.controller().initial(config.members)  # detect a wrong --pbt.tune before a folder is created
    # Read the weights before an old run of this name is renamed, because --init-from may refer to it.
    first = None if may_resume(config) else WarmStart.find(resolved, _warn)
    locked = lock_run_folder(config)
    callbacks = callbacks or Callbacks()
    callbacks.folder = locked.folder.path
    _warn(*locked.notes)
    failed = True
    try:
        continued = find_continued(locked.config, locked.folder, _warn) if locked.existing else None
        if locked.existing and continued is None:
            _warn(f"{locked.folder.path} was never saved: the run starts again")
            locked.release(failed=False)
            locked = lock_run_folder(replace(locked.config, overwrite=True))
        if continued is None and first is None:
            first = WarmStart.find(resolved, _warn)
        fleet: StartsFleet | None = None if cluster is None else cluster.fleet
        if spare is not None and fleet is None and config.mode != "serial":
            fleet = partial(ProcessFleet, spare=spare)
        elif spare is not None:
            spare.discard()
        run = replace(resolved, config=locked.config)
        if continued is not None:
            check_environment(locked.folder.path, run.spec, _warn, trains=True)
            declared = run.config.with_declared_hypers()
            run = replace(run, table=value_table(declared, run.spec.shaping, continued.value_names))
            continued = replace(continued, shaping=tuple(shaping))
        supervisor = Supervisor(run, locked, continued, first, callbacks, fleet)
        if supervisor.end.why is None:
            code = supervisor.run()
        else:
            remove_unfinished(locked.folder.checkpoints)
            print(f"{locked.folder.path} has ended ({supervisor.end.why}): {supervisor.end.remedy}")
            code = 0
        failed = False
    except RunFailed:  # keep the folder for diagnosis, unless a replaced run is restored
        failed = False
        raise
    finally:
        _warn(locked.release(failed=failed))
    if callbacks.error is not None:
        raise callbacks.error
    return code


def _warn(*texts: str) -> None:
    for text in filter(None, texts):
        print(f"pbt-rl: {text}", file=sys.stderr)
