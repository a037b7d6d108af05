"""Runs of an environment with a random policy, for `pbt-rl envs check`.

A wrapper around each Gymnasium environment records data that the vector env hides: durations of resets and steps,
observations outside their bounds, and true objectives in info dicts.

Axes: T steps, R rows (with several agents: one row per agent of each environment), D choices of an action mask.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from pbt_rl.envs import base, lookup
from pbt_rl.envs.conventions import (
    FIRST_OF_NEXT,
    LOOKS,
    MISSING_FINAL,
    NEW_DEFAULTS,
    NEW_SPACES,
    boxes,
    once,
)
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.shaping import find_interface, flatten
from pbt_rl.envs.spaces import is_grid, is_image
from pbt_rl.envs.step_warnings import Watch
from pbt_rl.envs.time_limits import close_in_time, time_limit
from pbt_rl.envs.user_values import check_distinct, flag_of, wrapped
from pbt_rl.errors import EnvSetupError

DECIMALS = 3
ENVIRONMENTS = 2
"""Number of environments in the vector env: two, to find state that environments share."""


@dataclass
class _Source:
    """Shaping source of a vector env: row -> (shaping version, shaping weights), with constant weights and version 0.

    `warnings` collects the warnings of the vector env, each once.
    """

    values: Mapping[str, float]
    warnings: list[str] = field(default_factory=list)
    warn: Callable[[str], None] = field(init=False)

    def __call__(self, _row: int) -> tuple[int, Mapping[str, float]]:
        return 0, self.values

    def __post_init__(self) -> None:
        self.warn = once(self.warnings.append)


@dataclass
class Ledger:
    """Findings of the recording wrappers of all environments."""

    say: Callable[[str], None]
    """Called with each mistake."""
    shaping: Mapping[str, float]
    """Default shaping weights."""
    reset_seconds: list[float] = field(default_factory=list)
    """Duration of each reset."""
    step_seconds: list[float] = field(default_factory=list)
    """Duration of each step."""
    ends: int = 0
    """Number of ended episodes."""
    objectives: int = 0
    """Number of ended episodes with a true objective."""
    outside: Counter[str] = field(default_factory=Counter)
    """Observation name -> number of arrays outside the bounds of their space."""
    examples: dict[str, str] = field(default_factory=dict)
    """Observation name -> text about a number outside the bounds."""
    limit: int = 0
    """Length of the last truncated episode in steps. In later episodes, `_step_watched` does the step with this
    number."""
    resets: list[bool] = field(default_factory=list)
    """For each watched step with a truncation: True if `step` called `reset` and returned the reset's observation."""


class _RecordingWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the results of an environment without changing them."""

    def __init__(self, env: gymnasium.Env[Any, Any], ledger: Ledger) -> None:
        super().__init__(env)
        self._ledger, self._steps = ledger, 0
        self._spaces = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        ledger, say, before = self._ledger, self._ledger.say, time.perf_counter()
        answer = self.env.reset(seed=seed, options=options)
        ledger.reset_seconds.append(time.perf_counter() - before)
        self._steps = 0
        obs = answer[0] if isinstance(answer, tuple) else answer
        self._look(obs)
        if (self.env.observation_space, self.env.action_space) != self._spaces:
            say(NEW_SPACES)
        shaper = find_interface(self.env)
        if shaper is not None and flatten(shaper.get_default_reward_shaping()) != ledger.shaping:
            say(NEW_DEFAULTS)
        return answer

    def step(self, action: Any) -> Any:
        ledger = self._ledger
        self._steps += 1
        watched = self._steps == ledger.limit and len(ledger.resets) < LOOKS
        before = time.perf_counter()
        answer: Any = self._step_watched(action) if watched else self.env.step(action)
        ledger.step_seconds.append(time.perf_counter() - before)
        if not isinstance(answer, tuple) or len(answer) != 5:
            return answer  # the vector env reports this mistake
        obs, _, terminated, truncated, info = answer
        self._look(obs)
        known = isinstance(info, Mapping) and "true_objective" in info
        with suppress(ValueError):  # the vector env reports values that are not flags
            over = flag_of(terminated) or flag_of(truncated)
            ledger.ends += over
            ledger.objectives += known and over
            if flag_of(truncated):
                ledger.limit = self._steps
        return answer

    def _step_watched(self, action: Any) -> Any:
        """Step the environment. Check if its `step` called `reset` and returned the observation of this reset.

        A Python profiler records the return values of `reset` and `step` of the environment and its wrappers.
        """
        layers, ledger = {*map(id, wrapped(self.env))}, self._ledger
        returned: dict[str, list[Any]] = {"reset": [], "step": []}

        def note(frame: FrameType, event: str, value: Any) -> None:
            code = frame.f_code
            own = event == "return" and code.co_name in returned and code.co_argcount
            if own and isinstance(value, tuple) and id(frame.f_locals.get(code.co_varnames[0])) in layers:
                returned[code.co_name].append(value)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            answer = self.env.step(action)
        finally:
            sys.setprofile(before)
        with suppress(Exception):  # user data that cannot be compared
            last = [step[0] for step in returned["step"] if step[3]]
            pairs = [(reset[0], obs) for reset in returned["reset"] for obs in last]
            if last:
                ledger.resets.append(any(data_equivalence(a, b, exact=True) for a, b in pairs))
        if ledger.resets == [True] * LOOKS:
            ledger.say(MISSING_FINAL.format(LOOKS, FIRST_OF_NEXT))
        return answer

    def _look(self, obs: Any) -> None:
        """Record observations outside the bounds of their space."""
        ledger = self._ledger
        for name, box, array in boxes(self.env.observation_space, obs):
            if array.shape != box.shape or array.dtype.kind not in "fiu":
                continue
            if (outside := (array < box.low) | (array > box.high)).any():
                ledger.outside[name] += 1
                number, low, high = (part[outside].flat[0] for part in (array, box.low, box.high))
                ledger.examples.setdefault(name, f"{number:g} where {low:g} to {high:g} are allowed")


@dataclass
class Played:
    """Results of a random policy in a vector env. A step is a step of all rows."""

    warnings: list[str]
    """Warnings about the environment."""
    ledger: Ledger | None
    """Findings of the recording wrappers. None if the environments are not single Gymnasium environments."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each step."""
    digests: list[bytes] = field(default_factory=list)
    """Digest of the results of each step."""
    first_digests: list[bytes] = field(default_factory=list)
    """For each step: digest of the results of the first environment."""
    rounded: list[bytes] = field(default_factory=list)
    """Digest of each step's observations and rewards, rounded to `DECIMALS` because simulators have rounding errors."""
    rewards_TR: list[NDArray[np.float32]] = field(default_factory=list)
    terminated: int = 0
    """Number of terminated episodes."""
    truncated: int = 0
    """Number of truncated episodes."""
    lengths: list[int] = field(default_factory=list)
    """Length of each ended episode in steps."""
    returns: list[float] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    masked_share: list[float] = field(default_factory=list)
    """Share of the actions that the action mask forbids, at each step."""
    idle_rows: int = 0
    """Number of observations whose action mask forbids all actions."""
    begun: bool = False
    """True after the first reset has returned."""
    error: Exception | None = None
    """Exception that ended the run early, if any."""
    broke: str = ""
    """Description of `error`. Empty if `error` is None."""

    def note(self, out: base.StepArrays, seconds: float, agents: int = 1) -> None:
        """Record a step of all rows.

        out: results of the step. seconds: duration. agents: number of rows of each environment.
        """
        self.seconds.append(seconds)
        numbers = (*out.obs.values(), out.reward)
        results = (*numbers, out.terminated, out.truncated, out.first)
        self.digests.append(_digest(results))
        self.first_digests.append(_digest(array[:agents] for array in results))
        self.rounded.append(_digest(a.round(DECIMALS) + 0.0 if a.dtype.kind == "f" else a for a in numbers))
        self.rewards_TR.append(out.reward.copy())
        if base.ACTION_MASK in out.obs:
            mask_RD = out.obs[base.ACTION_MASK]
            self.masked_share.append(1 - float(mask_RD.mean()))
            self.idle_rows += int((~mask_RD.any(1)).sum())
        done_R = out.episode_done
        self.terminated += int((out.terminated & done_R).sum())
        self.truncated += int((out.truncated & done_R).sum())
        self.lengths += out.length[done_R].tolist()
        self.returns += out.raw_return[done_R].tolist()
        self.objectives += out.objective[done_R].tolist()


def _digest(arrays: Iterable[NDArray[Any]]) -> bytes:
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=8).digest()


class DryRun:
    """Runner of an environment with a random policy.

    timeout: time limit in seconds, for the construction and reset of the vector env, and for each step.
    """

    def __init__(self, env_id: str, options: lookup.EnvOptions, spec: base.EnvSpec, timeout: float) -> None:
        self.env_id, self.options, self.spec = env_id, options, spec
        self.rows = ENVIRONMENTS * spec.agents
        self.engine = False
        """True if single environments cannot be made, as with native vector environments and device simulators."""
        self._pictures = [name for name, array in spec.obs.items() if is_image(array) and not is_grid(array)]
        limit = f"{timeout:g} s (--timeout-seconds)"
        self._begin_limit = partial(
            time_limit, timeout, f"{env_id} hangs: construction and reset took more than {limit}"
        )
        self._step_limit = partial(time_limit, timeout, f"it hangs: a step took more than {limit}")

    def play(
        self,
        steps: int,
        seed: int,
        shaping: Mapping[str, float] | None = None,
        *,
        other_actions: bool = False,
    ) -> Played:
        """Run `steps` steps of each row. All calls of this method draw actions from equal random numbers.

        Exceptions of the construction of environments are raised. Later exceptions are recorded in the result.

        seed: seed of the vector env. shaping: shaping weights. Default: the environment's default weights.
        other_actions: True: in all environments except the first, the actions differ from those of calls with False.
        """
        source = _Source(self.spec.shaping if shaping is None else shaping)
        with self._begin_limit():
            vector_env, ledger = self._vector_env(seed, source)
        played, out = Played(source.warnings, ledger), base.private_step_arrays(self.spec, self.rows)
        watch = Watch(source.warn, self._pictures, steps + 1)
        rng, other_rng, agents = np.random.default_rng(0), np.random.default_rng(1), self.spec.agents
        try:
            with self._begin_limit():
                vector_env.reset(out)
            played.begun = True
            for _ in range(steps):
                action = base.random_actions(self.spec, out, rng, base.untrained_within)
                if other_actions:
                    other = base.random_actions(self.spec, out, other_rng, base.untrained_within)
                    action[agents:] = other[agents:]
                with self._step_limit():
                    before = time.perf_counter()
                    vector_env.step(action, out)
                    seconds = time.perf_counter() - before
                watch.note(out, seconds)
                played.note(out, seconds, agents)
            watch.judge()
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            played.error, played.broke = (
                error,
                f"it raised {type(error).__name__}\n{environment_traceback(error)}",
            )
            if isinstance(error, EnvSetupError):
                played.broke = str(error).removeprefix(f"{self.env_id}: ")
        if text := close_in_time(vector_env):
            played.warnings.append(text)
        return played

    def _vector_env(self, seed: int, source: _Source) -> tuple[base.VectorEnv, Ledger | None]:
        """Construct a vector env, with a recording wrapper around each Gymnasium environment.

        Return the vector env and the findings of the wrappers (None if single Gymnasium environments cannot be made).
        """
        made = (lookup.make_raw(self.env_id, replace(self.options, first_row=row)) for row in count())
        raw = next(made)
        self.engine = raw is None
        if not isinstance(raw, gymnasium.Env):
            if raw is not None:
                close_in_time(raw)
            return lookup.make_vector_env(self.env_id, self.rows, seed, self.options, source), None
        envs, ledger = [raw, *islice(made, self.rows - 1)], Ledger(source.warn, self.spec.shaping)
        check_distinct(self.env_id, envs)
        given = iter(envs)

        def make() -> gymnasium.Env[Any, Any]:
            env = next(given)
            assert isinstance(env, gymnasium.Env)
            return _RecordingWrapper(env, ledger)

        return GymVectorEnv(self.env_id, make, self.rows, seed, source), ledger
