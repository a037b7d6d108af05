"""Random-policy runs of an environment for `pbt-rl envs check`.

A wrapper around each Gymnasium environment records data that the vector env hides: times, types and info dicts.

Axes: R rows.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from pbt_rl.envs import base, lookup
from pbt_rl.envs.conventions import Watch, boxes, once
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.spaces import is_grid, is_image
from pbt_rl.envs.time_limits import close_in_time, time_limit
from pbt_rl.envs.values import flag_of
from pbt_rl.errors import EnvSetupError

DECIMALS = 3
ENVIRONMENTS = 2
"""Environments of the vector env. Two, to reveal state that they share in the process. Each has a row per agent."""


@dataclass
class Ledger:
    """Findings of the wrappers of all rows."""

    reset_seconds: list[float] = field(default_factory=list)
    step_seconds: float = 0.0
    steps: int = 0
    ends: int = 0
    objectives: int = 0
    oddities: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Warning -> its first occurrence."""


class _Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the results of an environment and changes nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any], ledger: Ledger) -> None:
        super().__init__(env)
        self._ledger = ledger

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        before = time.perf_counter()
        answer = self.env.reset(seed=seed, options=options)
        self._ledger.reset_seconds.append(time.perf_counter() - before)
        self._look(answer[0] if isinstance(answer, tuple) else answer)
        return answer

    def step(self, action: Any) -> Any:
        before = time.perf_counter()
        answer: Any = self.env.step(action)
        ledger = self._ledger
        ledger.step_seconds += time.perf_counter() - before
        ledger.steps += 1
        if not isinstance(answer, tuple) or len(answer) != 5:
            return answer  # the vector env reports it
        obs, _, terminated, truncated, info = answer
        self._look(obs)
        known = isinstance(info, Mapping) and "true_objective" in info
        with suppress(ValueError):  # not flags: the vector env reports it
            over = flag_of(terminated) or flag_of(truncated)
            ledger.ends += over
            ledger.objectives += known and over
        return answer

    def _look(self, obs: Any) -> None:
        for oddity, example in _bound_faults(self.env.observation_space, obs):
            self._ledger.oddities[oddity] += 1
            self._ledger.examples.setdefault(oddity, example)


def _bound_faults(space: Any, obs: Any) -> Iterator[tuple[str, str]]:
    """Yield a warning and the first number for each observation outside its bounds."""
    for name, box, array in boxes(space, obs):
        if array.shape != box.shape or array.dtype.kind not in "fiu":
            continue
        outside = (array < box.low) | (array > box.high)
        if outside.any():
            number, low, high = (part[outside].flat[0] for part in (array, box.low, box.high))
            yield (
                f"observation {name!r} lies outside the bounds of its space",
                f"{number:g} where {low:g} to {high:g} are allowed",
            )


@dataclass
class Played:
    """Steps of a vector env. One step is a step of all rows."""

    ledger: Ledger | None
    seconds: float = 0.0
    digests: list[bytes] = field(default_factory=list)
    rounded: list[bytes] = field(default_factory=list)
    """Digests of numbers rounded to `DECIMALS`, so that rounding errors of a simulator do not count."""
    rewards_TR: list[NDArray[np.float32]] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    masked_share: list[float] = field(default_factory=list)
    """Per step: share of the actions that the mask forbids."""
    shades: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Image -> its darkest and brightest pixel, 0 to 255."""
    idle_rows: int = 0
    """Number of observations whose mask allows no action."""
    remarks: list[str] = field(default_factory=list)
    """Warnings of the vector env (see `Remarks`)."""
    broke: str = ""
    """Reason for an early end, or empty."""


@dataclass
class _Source:
    """Source of constant shaping, which collects the warnings of a vector env."""

    values: Mapping[str, float]
    remarks: list[str] = field(default_factory=list)
    remark: Callable[[str], None] = field(init=False)

    def __call__(self, _row: int) -> tuple[int, Mapping[str, float]]:
        return 0, self.values

    def __post_init__(self) -> None:
        self.remark = once(self.remarks.append)


class DryRun:
    """Runs of an environment with a random policy."""

    def __init__(self, env_id: str, options: lookup.EnvOptions, spec: base.EnvSpec, timeout: float) -> None:
        self.env_id, self.options, self.spec, self.timeout = env_id, options, spec, timeout
        self.rows = ENVIRONMENTS * spec.agents
        self.engine = False
        """True for a native vector env, whose code is not the user's."""

    def vector_env(
        self, seed: int, shaping: base.ShapingSource, ledger: Ledger
    ) -> tuple[base.VectorEnv, Ledger | None]:
        """Construct a vector env, with recording wrappers if its environments are Gymnasium's."""
        made = (lookup.make_raw(self.env_id, replace(self.options, first_row=row)) for row in count())
        raw = next(made)
        self.engine = raw is None
        if not isinstance(raw, gymnasium.Env):
            if raw is not None:
                close_in_time(raw)
            return lookup.make_vector_env(self.env_id, self.rows, seed, self.options, shaping), None
        given = chain([raw], made)

        def make() -> gymnasium.Env[Any, Any]:
            env = next(given)
            assert isinstance(env, gymnasium.Env)
            return _Witness(env, ledger)

        return GymVectorEnv(self.env_id, make, self.rows, seed, shaping), ledger

    def reset_only(self, seed: int, limit: AbstractContextManager[None]) -> None:
        """Construct and reset a vector env within a time limit. Raises its exceptions."""
        with ExitStack() as end, limit:
            vector_env, _ = self.vector_env(seed, _Source(self.spec.shaping), Ledger())
            end.callback(close_in_time, vector_env)  # after the limit has ended
            vector_env.reset(base.private_step_arrays(self.spec, self.rows))

    def play(self, steps: int, seed: int, shaping: Mapping[str, float] | None = None) -> Played:
        """Run `steps` steps of each row. The random actions are the same in each call."""
        values = self.spec.shaping if shaping is None else shaping
        source = _Source(values)
        vector_env, ledger = self.vector_env(seed, source, Ledger())
        played, out = Played(ledger, remarks=source.remarks), base.private_step_arrays(self.spec, self.rows)
        watch = Watch(source.remark)
        rng = np.random.default_rng(0)
        with ExitStack() as end:
            end.callback(lambda: source.remarks.extend(filter(None, [close_in_time(vector_env)])))
            try:
                with self._step_limit():
                    vector_env.reset(out)
                for _ in range(steps):
                    action = base.random_actions(self.spec, out, rng, base.untrained_within)
                    with self._step_limit():
                        before = time.perf_counter()
                        vector_env.step(action, out)
                        seconds = time.perf_counter() - before
                    played.seconds += seconds
                    watch.note(out, seconds)
                    _note(played, out)
                watch.judge()
            except EnvSetupError as error:
                played.broke = str(error).removeprefix(f"{self.env_id}: ")
            except Exception as error:  # noqa: BLE001 - any exception is a finding
                played.broke = f"it raised {type(error).__name__}\n{environment_traceback(error)}"
        return played

    def _step_limit(self) -> Any:
        return time_limit(
            self.timeout, f"it hangs: a step took more than {self.timeout:g} s (--timeout-seconds)"
        )


def _note(played: Played, out: base.StepArrays) -> None:
    """Record a step of all rows."""
    of_rows = [b"".join(array[row].tobytes() for array in out.obs.values()) for row in range(len(out.first))]
    flags = b"".join(a.tobytes() for a in (out.reward, out.terminated, out.truncated, out.first))
    played.digests.append(hashlib.blake2b(b"".join(of_rows) + flags, digest_size=8).digest())
    numbers = (*out.obs.values(), out.reward)
    rounded = b"".join((a.round(DECIMALS) + 0.0 if a.dtype.kind == "f" else a).tobytes() for a in numbers)
    played.rounded.append(hashlib.blake2b(rounded, digest_size=8).digest())
    played.rewards_TR.append(out.reward.copy())
    for name, array in out.obs.items():
        if is_image(array[0]) and not is_grid(array[0]):
            darkest, brightest = played.shades.get(name, (255, 0))
            played.shades[name] = min(darkest, int(array.min())), max(brightest, int(array.max()))
    if base.ACTION_MASK in out.obs:
        mask_RD = out.obs[base.ACTION_MASK]
        played.masked_share.append(1 - float(mask_RD.mean()))
        played.idle_rows += int((~mask_RD.any(1)).sum())
    for row in range(len(out.first)):
        if out.episode_done[row]:
            played.terminated += bool(out.terminated[row])
            played.truncated += bool(out.truncated[row])
            played.lengths.append(int(out.length[row]))
            played.returns.append(float(out.raw_return[row]))
            played.objectives.append(float(out.objective[row]))
