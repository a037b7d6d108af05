"""Evaluation of a trained member over complete episodes (`pbt-rl eval RUN`)."""

from __future__ import annotations

import sys
from pathlib import Path

from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.display.terminal import counted
from pbt_rl.envs import lookup
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.lookup import shown_name
from pbt_rl.learner import build
from pbt_rl.play.film import best_film
from pbt_rl.play.member import (
    MAX_ROWS,
    PlayedEpisode,
    Policy,
    Progress,
    counted_objectives,
    evaluation_spec,
    load_pack,
    play_episodes,
    say,
    warn_of_mistakes,
)
from pbt_rl.record.saved import Source, saved_to_play


def evaluate(
    source: Source, episodes: int, video: Path | None, seed: int, *, greedy: bool, trust: bool = False
) -> None:
    """Play complete episodes of a member, and print the objective of each episode, or of each task.

    The environment family sets the evaluation options (Atari: unclipped rewards). Shaping has default values, because
    members must be comparable.
    episodes: number of episodes (of each task, if the environment has tasks).
    video: file for the best episode. If the environment has tasks, only the episodes of the first row are filmed.
    greedy: True to take the most probable choices, and the means of continuous components, instead of sampling.
    trust: True to import modules that a run of another user, or a copied or moved run, names.
    Raises ConfigError for a folder without a run, if the run needs `trust`, for an unsaved member or checkpoint, for
    weights that do not fit the environment or the config, and for a video that cannot be written. Raises EnvSetupError
    if the environment raises an error or cannot be filmed.
    """
    filmed = None if video is None else best_film(video)
    config, saved = saved_to_play(source, say, trust=trust)
    spec, options = evaluation_spec(config)
    how = "greedy" if greedy else "sampled"
    each = f" of each of {len(spec.tasks)} tasks" if spec.tasks else ""
    shown = shown_name(config.env, options)
    print(f"{saved}: {counted(episodes, 'episode')}{each} of {shown}, {how} actions", flush=True)
    warn_of_mistakes(spec)
    pack = load_pack(config, spec, saved, seed)
    policy = Policy(pack, spec, config.model, seed, greedy=greedy)
    with build.one_thread():
        # The camera films only row 0. Without tasks, all episodes are played in its environment. (With tasks, this is
        # too slow.)
        most = 1 if filmed is not None and not spec.tasks else MAX_ROWS
        begins = lookup.backend_of(config.env, options)[0].begins
        # Episodes of some tasks are 50 times longer than episodes of other tasks.
        progress = Progress(sys.stderr, begins, alike=not spec.tasks)
        played = play_episodes(policy, options, episodes, seed, filmed, progress, most=most)
    if spec.tasks:
        _print_tasks(spec, played)
    else:
        _print_result(played)
    if video is not None:
        print(f"the best episode{' of the first row' if spec.tasks else ''} is in {video}")


def _print_result(played: list[PlayedEpisode]) -> None:
    for number, episode in enumerate(played, start=1):
        print(f"episode {number:3d}: objective {episode.objective:g}, {episode.steps} steps")
    scores = [episode.objective for episode in played]
    print(
        f"objective over {counted(len(scores), 'episode')}: mean {mean(scores):.6g}, std {spread(scores):.6g}, "
        f"min {min(scores):g}, max {max(scores):g}"
    )


def _print_tasks(spec: EnvSpec, played: list[PlayedEpisode]) -> None:
    """Print one line per task, and the mean of the tasks' objectives (each capped at `spec.task_cap`)."""
    print(f"{'task':<40} {'episodes':>8} {'return':>10} {'objective':>10}")
    for number, name in enumerate(spec.tasks):
        mine = [episode for episode in played if episode.task == number]
        objective = mean([episode.objective for episode in mine])
        score = mean([episode.raw_return for episode in mine])
        print(f"{name:<40} {len(mine):>8} {score:>10.4g} {objective:>10.4g}")
    cap = "" if spec.task_cap is None else f" (each capped at {spec.task_cap:g})"
    print(f"objective over {len(spec.tasks)} tasks: mean {mean(counted_objectives(spec, played)):.6g}{cap}")
