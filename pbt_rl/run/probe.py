"""Estimate of a run's duration, from a trial: some seconds of training in a temporary folder."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pbt_rl.config import Config
from pbt_rl.config.budget import ENDLESS_FRAMES
from pbt_rl.display.ranking import count, in_time
from pbt_rl.display.terminal import counted
from pbt_rl.display.view import RunView
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed
from pbt_rl.play.evaluation.evaluations import final_seconds
from pbt_rl.run.callbacks import Callbacks, Stop
from pbt_rl.run.train import train

PROBE_SECONDS, MOST_PROBE_SECONDS = 5.0, 30.0
"""Seconds of training after the first learned batch, and maximum seconds of training in a trial. In mode `async`, the
speed before this batch is not measured, because sampling is faster until rollouts wait for the learner."""
UPDATES = 3
"""Minimum number of increases of the frames after the first batch, if a trial ends before MOST_PROBE_SECONDS."""


def describe_duration(config: Config, spec: EnvSpec) -> str:
    """Describe the estimated duration of a run, or the estimated frames of each member if --train-for-seconds ends it.

    If the trial fails, the text contains the reason instead.
    Raises KeyboardInterrupt if a signal ends the trial.
    """
    steps: list[tuple[float, int]] = []
    learned: list[tuple[float, int]] = []
    restarted = 0

    def note(view: RunView) -> Stop | None:
        nonlocal restarted
        restarted = view.actors_restarted
        if not steps or view.frames > steps[-1][1]:
            steps.append((view.training_seconds, view.frames))
            if config.mode != "async" or view.busy_threads.get("learning", 0.0) > 0:
                learned.append(steps[-1])
        enough = len(learned) > UPDATES and view.training_seconds >= learned[0][0] + PROBE_SECONDS
        return Stop("the trial is over") if enough else None

    try:
        with TemporaryDirectory(prefix="pbt-rl-") as folder:
            trial = replace(
                config,
                out=Path(folder),
                name="trial",
                hours=None,
                train_for_frames=ENDLESS_FRAMES,
                train_for_seconds=MOST_PROBE_SECONDS,
                stop_at_objective=None,
                final_episodes=0,
                evaluate_every_frames=0,
                evaluate_video=False,
                save_every_seconds=0.0,
                save_every_frames=0,
                figures=False,
                track=(),
                init_from=(),
            )
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = train(trial, Callbacks(on_report=note))
    except (ConfigError, EnvSetupError, RunFailed, OSError) as error:
        return f"no estimate of the duration, because the trial failed: {error}"
    if code:
        raise KeyboardInterrupt
    if restarted:
        found = "an environment failed in the trial"
        return f"no estimate of the duration: {found}; `pbt-rl envs check {config.env}` reports the mistake"
    if len(steps) < 2:
        return f"no estimate of the duration: no batch was learned in {in_time(MOST_PROBE_SECONDS)}"
    (began, before), (ended, frames) = (learned if len(learned) > 1 else steps)[0], steps[-1]
    return _in_words(config, spec, (frames - before) / (ended - began), ended)


def _in_words(config: Config, spec: EnvSpec, rate: float, probed: float) -> str:
    """Format the estimate of a run's duration. rate: frames/s of all members. probed: seconds of the trial."""
    each = config.full_frames
    of_all = f"of each of {counted(config.members, 'member')}"
    seconds, most = each * config.members / rate, "at most " * config.searches
    if 0 < config.train_for_seconds < seconds:
        seconds, each = config.train_for_seconds, round(config.train_for_seconds * rate / config.members)
        told = f"about {count(each)} frames {of_all} in {in_time(seconds)}"
    else:
        told = f"{most}about {in_time(seconds)} for {count(each)} frames {of_all}"
    if limit := final_seconds(config, spec, seconds):
        told += f" (then up to {in_time(limit)} for the final evaluation)"
    how = f"estimated from {probed:.0f} s of training on this machine as it is now"
    return f"{told}, at {rate:,.0f} frames/s in all ({how})"
