"""Loading of a trained member, and evaluation over complete episodes.

A member acts in a pack of one policy, with frame stacking, normalisers and recurrent core as in training. Evaluation,
matches between members, and `load_policy` use this module. A member's file contains arrays and no code.

Long evaluations show their progress. The best episode can be filmed.

Axes: R rows of the vector env (one environment or agent each), A action components, D distribution parameters,
S size of the recurrent state. The pack has one policy, P = 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbt_rl.algos.model_config import ModelConfig
from pbt_rl.algos.observations import ObsLayout, push_frames
from pbt_rl.algos.pack import Pack
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.objectives import mean
from pbt_rl.envs.base import (
    EnvSpec,
    StepArrays,
    VectorEnv,
    default_shaping_source,
    private_step_arrays,
    random_actions,
)
from pbt_rl.envs.lookup import EnvOptions, evaluation_options, make_vector_env, probe
from pbt_rl.envs.time_limits import closing
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.learner import build
from pbt_rl.plan import PackPlan
from pbt_rl.record.checkpoints import (
    NORMALISERS,
    WEIGHTS,
    Arrays,
    check_finite,
    from_tensors,
    misfit_text,
    misfits,
    to_tensors,
)
from pbt_rl.record.environment_check import check_environment
from pbt_rl.record.saved import SavedPolicy


def say(text: str) -> None:
    """Print a message to stderr."""
    print(f"pbt-rl: {text}", file=sys.stderr)


def warn_of_mistakes(spec: EnvSpec) -> None:
    """Print a warning for each mistake of the environment, because mistakes may change scores."""
    for mistake in spec.mistakes:
        say(f"warning: {mistake}")


def load_pack(config: Config, spec: EnvSpec, policy: SavedPolicy, seed: int, *, check: bool = True) -> Pack:
    """Load the weights and normalisers of a saved member into a new pack of one policy on the CPU.

    check: True to check the environment for changes since training.
    Raises ConfigError if the environment has changed so that the network does not fit it, or if the weights do not fit
    the run's config.json or are not finite. Raises CheckpointBroken for a damaged file.
    """
    plan = PackPlan(
        "cpu",
        (0,),
        actors=1,
        vector_envs_per_actor=1,
        envs_per_policy=1,
        vector_envs_per_batch=1,
        threads=1,
        slots=1,
    )
    checkpoint, member = policy.checkpoint, policy.member
    if check:
        check_environment(policy.run, spec, say, trains=False)
    path, (tensors, _) = checkpoint.file(member), checkpoint.tensors(member)
    _check_size(config, spec, path, tensors)
    values = {
        name: hyper.default for name, hyper in hyper_table(config.with_declared_hypers().hypers).items()
    }
    pack = build.build_pack(config, spec, plan, [values], seed)
    fresh, names = (
        {name: tensor.numpy() for name, tensor in pack.export_member(0).items()},
        build.net_names(pack),
    )
    if found := misfits(tensors, to_tensors(fresh, names), (WEIGHTS, NORMALISERS)):
        raise ConfigError(misfit_text(path, found))
    check_finite(path, {n: array for n, array in tensors.items() if n.startswith((WEIGHTS, NORMALISERS))})
    saved = from_tensors(path, tensors, names)
    arrays = {name: saved.get(name, array) for name, array in fresh.items()}
    pack.import_member(0, {name: torch.from_numpy(array) for name, array in arrays.items()})
    return pack


def _check_size(config: Config, spec: EnvSpec, path: Path, tensors: Arrays) -> None:
    """Raise ConfigError if a config does not describe the saved network. Custom modules are not checked.

    Call this before the construction of the network, because a wrong config could demand any amount of memory.
    """
    saved = {
        name.removeprefix(WEIGHTS): array.shape for name, array in tensors.items() if name.startswith(WEIGHTS)
    }
    model = config.model
    built_in = [model.core_size] if model.core in ("gru", "lstm") else []
    fits = model.core_layers <= len(saved) or not built_in
    if ":" not in model.encoder:
        fits = fits and model.depth <= len(saved)
        built_in += model.hidden
    fits = fits and max(built_in, default=0) <= sum(map(prod, saved.values()))
    if fits and not model.own_parts:
        with torch.device("meta"):  # computes shapes without allocating memory
            net = build.build_net(spec, model, config.algorithm)
        fits = {name: tuple(t.shape) for name, t in net.state_dict().items()} == saved
    if not fits:
        raise ConfigError(f"{path} does not fit the network of the run's config.json")


@dataclass(frozen=True)
class PolicyState:
    """Recurrent state and stacked frames of R running episodes. Immutable."""

    recurrent_PRS: Tensor
    """[1, R, size of the recurrent state]."""
    frames: Mapping[str, Tensor]
    """Observation name -> frame stack, int32 [R, height, width]. An int32 contains a pixel's last four 8-bit values."""


class Policy:
    """Trained policy that acts for the rows of a vector env.

    model: network options of the run. seed: seed of action sampling. greedy: True to take the most probable choices,
    and the means of continuous components, instead of sampling.
    """

    def __init__(self, pack: Pack, spec: EnvSpec, model: ModelConfig, seed: int, *, greedy: bool) -> None:
        assert pack.num_policies == 1
        self.spec = spec
        self._pack, self._greedy = pack, greedy
        layouts = build.obs_layouts(spec)
        self._layouts = {name: layout for name, layout in layouts.items() if name not in spec.critic}
        self._unseen = {name: layouts[name] for name in spec.critic}
        """Layouts of observations that only the critic reads. The network gets zeros, because actions ignore them."""
        self._distribution = build.build_distribution(spec, model)
        self._generator = torch.Generator(pack.device).manual_seed(seed)

    @build.own_torch()
    def act(
        self, obs: Mapping[str, NDArray[Any]], first_R: NDArray[np.bool_], state: PolicyState | None
    ) -> tuple[NDArray[Any], PolicyState]:
        """Return actions [R, A] and the next state. Axes: R rows of the vector env, A action components.

        obs: name -> array [R, ...]. first_R: True for rows that begin an episode. state: state that the previous call
        returned. None: zeros.
        """
        device, rows = self._pack.device, len(first_R)
        before = self._blank(rows) if state is None else state
        seen: dict[str, Tensor] = {}
        frames: dict[str, Tensor] = {}
        for name, layout in self._layouts.items():
            if layout.stack > 1:
                stored = before.frames[name].clone()
                frame = torch.from_numpy(np.array(obs[name])).to(device)
                push_frames(stored, frame, first_R)
                frames[name] = stored
            else:
                stored = torch.from_numpy(np.array(obs[name])).to(device)
            seen[name] = layout.as_seen(stored.unsqueeze(0))
        for name, layout in self._unseen.items():
            dtype, shape = layout.stored
            seen[name] = layout.as_seen(torch.zeros((1, rows, *shape), dtype=dtype, device=device))
        first_PR = torch.from_numpy(first_R.copy()).to(device).unsqueeze(0)
        with build.network_errors():
            params_PRD, _, recurrent_PRS = self._pack.act(seen, before.recurrent_PRS, first_PR)
        actions: NDArray[Any]
        if self._greedy:
            actions = self._distribution.greedy(params_PRD[0]).cpu().numpy()
        else:
            drawn_RA = self._distribution.sample(params_PRD, self._generator)[0][0]
            actions = self._distribution.delivered(drawn_RA.cpu().numpy())
        return actions, PolicyState(recurrent_PRS, frames)

    def _blank(self, rows: int) -> PolicyState:
        device = self._pack.device

        def stack(layout: ObsLayout) -> Tensor:
            dtype, shape = layout.stored
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        return PolicyState(
            torch.zeros((1, rows, self._pack.state_size), device=device),
            {name: stack(layout) for name, layout in self._layouts.items() if layout.stack > 1},
        )


class Acts(Protocol):
    """Interface of a policy that plays in a vector env."""

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Return the next actions for the rows, [R, A] of the spec's dtype. step: arrays of the latest step."""


class RandomPlayer:
    """Random policy. Discrete actions are uniform among the allowed ones. Continuous actions: see `random_within`."""

    def __init__(self, spec: EnvSpec, seed: int) -> None:
        self._spec, self._rng = spec, np.random.default_rng(seed)

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Sample actions [R, A]."""
        return random_actions(self._spec, step, self._rng)


class Player:
    """Policy that plays in one vector env, and keeps its recurrent state and frame stacks between steps."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._state: PolicyState | None = None

    def act(self, step: StepArrays) -> NDArray[Any]:
        """Return actions [R, A]."""
        actions, self._state = self._policy.act(step.obs, step.first, self._state)
        return actions


EVERY_SECONDS, EVERY_SECONDS_IN_A_LOG = 1.0, 30.0


class Progress:
    """Display of the number of episodes that have ended.

    On a terminal, one line is updated in place, and removed at the end. Other streams get at most one new line per
    EVERY_SECONDS_IN_A_LOG. waits_for: text that is shown until an episode has ended.
    alike: True if all episodes have similar lengths. The remaining time is shown only in this case.
    """

    def __init__(self, stream: TextIO, waits_for: str = "", *, alike: bool = True) -> None:
        self._alike = alike
        self._stream, self._terminal, self._waits_for = stream, stream.isatty(), waits_for
        self._every = EVERY_SECONDS if self._terminal else EVERY_SECONDS_IN_A_LOG
        self._began = time.monotonic()
        self._next = self._began + self._every
        self._open = False

    def show(self, ended: int, total: int) -> None:
        """Show the progress if enough time has passed. ended: number of ended episodes. total: number of episodes."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self._open = self._terminal
        left = (now - self._began) / ended * (total - ended) if ended and self._alike else 0.0
        waits = f" ({self._waits_for})" if self._waits_for and not ended else ""
        text = f"{ended} of {total} episodes have ended{waits}" + (
            f", about {left:,.0f} s left" if left else ""
        )
        self._stream.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Remove the line from the terminal."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class Records(Protocol):
    """Interface of a recorder, which receives every step of an evaluation."""

    def take(self, step: StepArrays, action_RA: NDArray[Any] | None) -> None:
        """Record a step. action_RA: actions that led to this step. None after the first reset."""


Filmed = Callable[[EnvSpec, int, int, EnvOptions], AbstractContextManager[tuple[VectorEnv, Records]]]
"""Function (spec, rows, seed, options) -> context manager that yields a new vector env, and the recorder of its row 0.

Raises ConfigError or EnvSetupError if the environment cannot be rendered."""


MAX_ROWS = 8
"""Default maximum number of parallel episodes, except in device simulators."""


@dataclass(frozen=True)
class PlayedEpisode:
    """Result of one complete episode."""

    objective: float
    steps: int
    raw_return: float = 0.0
    task: int = 0
    """Index of the task in `EnvSpec.tasks`. 0 without tasks."""


def evaluation_spec(config: Config) -> tuple[EnvSpec, EnvOptions]:
    """Return spec and options of the environment in which the members of a run are evaluated.

    Raises EnvSetupError if the environment cannot be used.
    """
    with environment_code(config.env):
        options = evaluation_options(config.env, config.env_options)
        return probe(config.env, options), options


def play_episodes(
    policy: Policy,
    options: EnvOptions,
    episodes: int,
    seed: int,
    filmed: Filmed | None = None,
    progress: Progress | None = None,
    *,
    most: int = MAX_ROWS,
) -> list[PlayedEpisode]:
    """Play complete episodes.

    episodes: number of episodes (of each task, if the environment has tasks).
    filmed: factory of a vector env and of a recorder. None: nothing is recorded.
    most: maximum number of parallel episodes, rounded up to a multiple of the number of agents. (In a device simulator,
    all episodes are parallel unless `most` is 1.)
    """
    spec = policy.spec
    if spec.tasks:
        rows = min(most, len(spec.tasks))
        share_R = shares_of_tasks(episodes, len(spec.tasks), rows)
    else:
        # Rows of a device simulator cost little, so each episode has a separate row.
        at_once = min(episodes, episodes if spec.simulator and most > 1 else most)
        rows = -(-at_once // spec.agents) * spec.agents
        share_R = shares(episodes, rows)
    with ExitStack() as end:
        if progress is not None:
            end.callback(progress.end)
        vector_env: VectorEnv
        recording: Records | None = None
        if filmed is None:
            with environment_code(spec.env_id):
                vector_env = make_vector_env(spec.env_id, rows, seed, options, default_shaping_source(spec))
            end.enter_context(closing(vector_env))
        else:
            vector_env, recording = end.enter_context(filmed(spec, rows, seed, options))
        return play(vector_env, Player(policy), share_R, recording, progress)


def counted_objectives(spec: EnvSpec, played: Sequence[PlayedEpisode]) -> list[float]:
    """Return the numbers whose mean is the score: the objectives of the episodes.

    If the environment has tasks: the mean objective of each task, at most `spec.task_cap`.
    """
    if not spec.tasks:
        return [episode.objective for episode in played]
    means = [mean([e.objective for e in played if e.task == task]) for task in range(len(spec.tasks))]
    return means if spec.task_cap is None else [min(one, spec.task_cap) for one in means]


# -- playing ------------------------------------------------------------------------------------------------


def shares(episodes: int, rows: int) -> list[int]:
    """Divide episodes among rows. Return the number of episodes of each row.

    The numbers are fixed before the episodes begin. Otherwise rows with short episodes would contribute more episodes.
    """
    return [episodes // rows + (row < episodes % rows) for row in range(rows)]


def shares_of_tasks(episodes: int, tasks: int, rows: int) -> list[int]:
    """Return the number of episodes of each row, so that each task is played `episodes` times.

    rows: number of rows, at most `tasks`.
    The tasks form `rows` blocks. Row r begins with the first task of block r (task r * tasks // rows), and cycles
    through all tasks. Each row plays `episodes // rows` complete cycles. Afterwards, each row plays `episodes % rows`
    consecutive blocks, beginning with block r. All blocks are therefore played equally often.
    """
    block_R = [(row + 1) * tasks // rows - row * tasks // rows for row in range(rows)]
    rounds, blocks = divmod(episodes, rows)
    return [rounds * tasks + sum((block_R * 2)[row : row + blocks]) for row in range(rows)]


def play(
    vector_env: VectorEnv,
    player: Player,
    share_R: list[int],
    recording: Records | None = None,
    progress: Progress | None = None,
) -> list[PlayedEpisode]:
    """Play `share_R[r]` episodes on row r. Return the results of the episodes in row order.

    Raises EnvSetupError if the environment raises an error.
    """
    env_id = vector_env.spec.env_id
    step = private_step_arrays(vector_env.spec, vector_env.rows)
    played_R: list[list[PlayedEpisode]] = [[] for _ in share_R]
    with environment_code(env_id, "in reset"):
        vector_env.reset(step)
    if recording is not None:
        recording.take(step, None)
    while any(len(played) < share for played, share in zip(played_R, share_R, strict=True)):
        action_RA = player.act(step)
        with environment_code(env_id, "in step"):
            vector_env.step(action_RA, step)
        if recording is not None:
            recording.take(step, action_RA)
        if progress is not None:
            progress.show(sum(map(len, played_R)), sum(share_R))
        for row in np.flatnonzero(step.episode_done).tolist():
            if len(played_R[row]) < share_R[row]:
                task = 0 if step.task is None else int(step.task[row])
                result = float(step.objective[row]), int(step.length[row]), float(step.raw_return[row])
                played_R[row].append(PlayedEpisode(*result, task))
    return [episode for played in played_R for episode in played]
