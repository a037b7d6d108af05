"""Playing a trained member: whole episodes with its own weights, scored by the true objective.

A member acts as it did in training: it is put into a pack of one, and the same code stacks its frames,
normalises its observations and carries its recurrent state. Of the run's folder only numbers are read.

Axes: R rows of the unit (one environment each), A action components; the pack has one policy, P = 1.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from pbt_rl.algos.distributions import make_distribution
from pbt_rl.algos.pack import Pack
from pbt_rl.algos.rollout import Rollout
from pbt_rl.config import Config
from pbt_rl.envs.base import (
    ActionSpec,
    EnvSpec,
    StepArrays,
    Unit,
    default_shaping_source,
    private_step_arrays,
)
from pbt_rl.envs.film import Camera
from pbt_rl.envs.registry import evaluation_options, make_unit, probe
from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import build_net, build_pack, obs_layouts
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.plan import PackPlan
from pbt_rl.play.video import Film, check_film, filmed_unit
from pbt_rl.record.checkpoint import load_weights
from pbt_rl.record.folder import RunFolder, config_from_json

MAX_ROWS = 8
"""Episodes that are played at once, each row its own share of them."""


@dataclass(frozen=True)
class PlayedEpisode:
    """One whole episode."""

    objective: float
    steps: int
    raw_return: float = 0.0
    task: int = 0
    """Index in `EnvSpec.tasks`; 0 where there are none."""


def evaluate(run: Path, member: str, episodes: int, video: Path | None, seed: int, *, greedy: bool) -> None:
    """Play whole episodes of a run's member and print their true objective.

    Atari games are played to their end, whatever a lost life meant in training, and scored unclipped; DeepMind Lab
    has the levels and maps of tests. Of an environment with tasks, so many episodes of each are played. Reward
    shaping has its default values, so that members can be compared. Raises ConfigError for a folder that is
    no run, a member without saved weights, less than one episode, and a video that cannot be made.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes {episodes} cannot be used: give 1 or more")
    if seed < 0:
        raise ConfigError(f"--seed {seed} cannot be used: give 0 or more")
    if video is not None:
        check_film(video)
    config = read_config(run)
    number = find_member(run, member)
    options = evaluation_options(config.env, config.env_options)
    spec = probe(config.env, options)
    pack = load_pack(config, spec, RunFolder(run).weights(number), seed)
    rows = -(-min(episodes, MAX_ROWS) // spec.seats) * spec.seats
    unit: Unit
    camera = None
    if video is None:
        unit = make_unit(spec.env_id, rows, seed, options, default_shaping_source(spec))
    else:
        unit, camera = filmed_unit(spec, rows, seed, options)
    film = Film(video, camera.frames_per_second) if video is not None and camera is not None else None
    how = "greedy" if greedy else "sampled"
    each = f" of each of {len(spec.tasks)} tasks" if spec.tasks else ""
    print(f"member {number} of {run}: {episodes} episodes{each} of {config.env}, {how} actions")
    try:
        with closing(unit):
            player = Player(pack, spec, rows, seed, greedy=greedy)
            share_R = [share * (len(spec.tasks) or 1) for share in shares(episodes, rows)]
            played = play(unit, player, share_R, _Recording(camera, film))
    finally:
        if film is not None:
            film.close()
        if camera is not None:
            camera.close()
    if spec.tasks:
        _print_tasks(spec, played)
    else:
        _print_result(played)
    if video is not None:
        print(f"the first episode is in {video}")


def _print_result(played: list[PlayedEpisode]) -> None:
    for number, episode in enumerate(played, start=1):
        print(f"episode {number:3d}: objective {episode.objective:g}, {episode.steps} steps")
    scores = [episode.objective for episode in played]
    print(
        f"objective over {len(scores)} episodes: mean {fmean(scores):.6g}, std {pstdev(scores):.4g}, "
        f"min {min(scores):g}, max {max(scores):g}"
    )


def _print_tasks(spec: EnvSpec, played: list[PlayedEpisode]) -> None:
    """A line a task, and the mean of what counts of each."""
    counted = []
    print(f"{'task':<40} {'episodes':>8} {'return':>10} {'objective':>10}")
    for number, name in enumerate(spec.tasks):
        mine = [episode for episode in played if episode.task == number]
        objective = fmean(episode.objective for episode in mine)
        counted.append(objective if spec.task_cap is None else min(objective, spec.task_cap))
        score = fmean(episode.raw_return for episode in mine)
        print(f"{name:<40} {len(mine):>8} {score:>10.4g} {objective:>10.4g}")
    cap = "" if spec.task_cap is None else f", of each no more than {spec.task_cap:g}"
    print(f"objective over {len(spec.tasks)} tasks: mean {fmean(counted):.6g}{cap}")


# -- what was trained ---------------------------------------------------------------------------------------


def read_config(run: Path) -> Config:
    """Read the config of a run. Raises ConfigError where there is none."""
    data = _read_json(RunFolder(run).config, f"{run} is not a run: it has no config.json")
    try:
        return config_from_json(data)
    except TypeError as error:
        raise ConfigError(f"{RunFolder(run).config} is not the config of a run: {error}") from error


def find_member(run: Path, member: str) -> int:
    """Turn `best` or an id into the id of a member whose weights were saved. Raises ConfigError."""
    if member == "best":
        summary = _read_json(
            RunFolder(run).summary,
            f"--member best: {run} has no summary.json: it has not ended; give an id, saved: {_saved(run)}",
        )
        best = summary.get("best_member")
        number = 0 if best is None else best  # no episode finished: the run saved member 0
        if not isinstance(number, int):
            raise ConfigError(f"{RunFolder(run).summary}: best_member is {best!r}, not the id of a member")
    elif member.isascii() and member.isdigit():
        number = int(member)
    else:
        raise ConfigError(f"--member {member!r} cannot be used: write best or the id of a member")
    if not RunFolder(run).weights(number).is_file():
        raise ConfigError(
            f"--member {member}: weights of member {number} were not saved; saved: {_saved(run)}"
        )
    return number


def _saved(run: Path) -> str:
    return ", ".join(map(str, RunFolder(run).saved_members())) or "none"


def _read_json(path: Path, if_missing: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(if_missing) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} cannot be read: it holds no JSON object")
    return data


def load_pack(config: Config, spec: EnvSpec, path: Path, seed: int) -> Pack:
    """Put saved weights and normalisers into a pack of one policy on the CPU. Raises ConfigError."""
    plan = PackPlan(
        "cpu", (0,), actors=1, units_per_actor=1, envs_per_policy=1, units_per_batch=1, threads=1, slots=1
    )
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    pack = build_pack(config, spec, plan, [values], seed)
    net = build_net(spec, config.model)
    try:
        statistics = load_weights(path, net)
    except SafetensorError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    pack.set_fresh(0, net)
    wanted = pack.named_statistics(0)
    if _shapes(statistics) != _shapes(wanted):
        raise ConfigError(
            f"{path} does not fit the run's config.json: "
            f"it holds the normalisers {sorted(statistics)}, not {sorted(wanted)}"
        )
    pack.import_member(0, pack.export_member(0) | statistics)
    return pack


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


# -- playing ------------------------------------------------------------------------------------------------


class Player:
    """A pack of one policy that answers the steps of one unit; a rollout one step long is its memory."""

    def __init__(self, pack: Pack, spec: EnvSpec, rows: int, seed: int, *, greedy: bool) -> None:
        assert pack.num_policies == 1
        self._pack, self._action, self._greedy = pack, spec.action, greedy
        self._low, self._high = (np.array(x, np.float32) for x in (spec.action.low, spec.action.high))
        self._distribution = make_distribution(spec.action.nvec, len(spec.action.low))
        self._generator = torch.Generator(pack.device).manual_seed(seed)
        dtype = getattr(torch, spec.action.dtype)
        self._rollout = Rollout(
            obs_layouts(spec), 1, rows, 1, (spec.action.components, dtype), pack.state_size, pack.device
        )
        self._state_PBS = torch.zeros((1, rows, pack.state_size), device=pack.device)
        self._started = False

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Answer a step with actions [R, A]."""
        rollout = self._rollout
        rollout.write_obs(int(self._started), step.obs, step.first)
        if self._started:
            rollout.follow(rollout)
        self._started = True
        obs_PB = {name: layout.as_seen(rollout.obs[name][:1]) for name, layout in rollout.layouts.items()}
        first_PB = torch.from_numpy(step.first).to(self._pack.device).unsqueeze(0)
        params_PBD, _, self._state_PBS = self._pack.act(obs_PB, self._state_PBS, first_PB)
        if self._greedy:
            action_BA = most_probable(self._action, params_PBD[0])
        else:
            action_BA = self._distribution.sample(params_PBD, self._generator)[0][0]
        actions: NDArray[Any] = action_BA.cpu().numpy()
        return np.clip(actions, self._low, self._high) if self._low.size else actions


def most_probable(action: ActionSpec, params_BD: Tensor) -> Tensor:
    """[B, A]: the most probable index of each discrete component, or the means of a Gaussian."""
    if action.nvec:
        parts = [logits.argmax(-1) for logits in torch.split(params_BD, list(action.nvec), -1)]
        return torch.stack(parts, -1).to(torch.int32)
    return params_BD.chunk(2, -1)[0]


def shares(episodes: int, rows: int) -> list[int]:
    """Episodes that each row plays.

    Fixed beforehand: taking the first ones to end would prefer short episodes.
    """
    return [episodes // rows + (row < episodes % rows) for row in range(rows)]


class _Recording:
    """Films row 0 until its first episode has ended."""

    def __init__(self, camera: Camera | None, film: Film | None) -> None:
        self._camera, self._film = camera, film

    def take(self, step: StepArrays, action_RA: NDArray[Any] | None) -> None:
        if self._camera is None or self._film is None:
            return
        self._film.add(self._camera.shoot(step, None if action_RA is None else action_RA[0]))
        if step.episode_done[0]:
            self._film = None


def play(unit: Unit, player: Player, share_R: list[int], recording: _Recording) -> list[PlayedEpisode]:
    """Play `share_R[r]` episodes on row r; returns them row by row."""
    step = private_step_arrays(unit.spec, unit.rows)
    played_R: list[list[PlayedEpisode]] = [[] for _ in share_R]
    unit.reset(step)
    recording.take(step, None)
    while any(len(played) < share for played, share in zip(played_R, share_R, strict=True)):
        action_RA = player.act(step)
        unit.step(action_RA, step)
        recording.take(step, action_RA)
        for row in np.flatnonzero(step.episode_done).tolist():
            if len(played_R[row]) < share_R[row]:
                task = 0 if step.task is None else int(step.task[row])
                played_R[row].append(
                    PlayedEpisode(
                        float(step.objective[row]), int(step.length[row]), float(step.raw_return[row]), task
                    )
                )
    return [episode for played in played_R for episode in played]
