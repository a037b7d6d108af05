"""Plays an environment for the checker as training would, without learning.

A witness around each single Gymnasium environment sees what a unit does not: times, types and info dicts.

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

from pbt_rl.envs import base, registry
from pbt_rl.envs.conventions import Watch, boxes, once
from pbt_rl.envs.first_trial import environment_traceback
from pbt_rl.envs.gym import GymUnit
from pbt_rl.envs.spaces import is_grid, is_image
from pbt_rl.envs.time_limits import close_in_time, time_limit
from pbt_rl.envs.values import flag_of
from pbt_rl.errors import EnvSetupError

DECIMALS = 3
ENVIRONMENTS = 2
"""Environments of the unit: with two, state that they share in the process shows. Each has a row per seat."""


@dataclass
class Ledger:
    """The findings of the witnesses of all rows."""

    reset_seconds: list[float] = field(default_factory=list)
    step_seconds: float = 0.0
    steps: int = 0
    ends: int = 0
    objectives: int = 0
    oddities: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Oddity -> what the first one was."""


class _Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Watches what an environment returns, and changes nothing."""

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
            return answer  # the unit reports it
        obs, _, terminated, truncated, info = answer
        self._look(obs)
        known = isinstance(info, Mapping) and "true_objective" in info
        with suppress(ValueError):  # no flags: the unit reports it
            over = flag_of(terminated) or flag_of(truncated)
            ledger.ends += over
            ledger.objectives += known and over
        return answer

    def _look(self, obs: Any) -> None:
        for oddity, example in _bound_faults(self.env.observation_space, obs):
            self._ledger.oddities[oddity] += 1
            self._ledger.examples.setdefault(oddity, example)


def _bound_faults(space: Any, obs: Any) -> Iterator[tuple[str, str]]:
    """Yield what lies outside, and the first number that does."""
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
    """The steps that a unit delivered. A step here is one step of all rows."""

    ledger: Ledger | None
    seconds: float = 0.0
    digests: list[bytes] = field(default_factory=list)
    rounded: list[bytes] = field(default_factory=list)
    """The same of numbers rounded to `DECIMALS`, which a simulator's rounding errors do not change."""
    rewards_TR: list[NDArray[np.float32]] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    masked_share: list[float] = field(default_factory=list)
    """Per step: the share of choices that the action mask forbids."""
    shades: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Picture -> its darkest and its brightest pixel, of 0 to 255."""
    idle_rows: int = 0
    """Observations whose mask allows nothing."""
    remarks: list[str] = field(default_factory=list)
    """What the unit told (see `Remarks`)."""
    broke: str = ""
    """Reason of an early end."""


@dataclass
class _Source:
    """Gives the same shaping always, and keeps what a unit tells."""

    values: Mapping[str, float]
    remarks: list[str] = field(default_factory=list)
    remark: Callable[[str], None] = field(init=False)

    def __call__(self, _row: int) -> tuple[int, Mapping[str, float]]:
        return 0, self.values

    def __post_init__(self) -> None:
        self.remark = once(self.remarks.append)


class DryRun:
    """Makes units of the environment and plays them with random actions."""

    def __init__(self, env_id: str, options: registry.EnvOptions, spec: base.EnvSpec, timeout: float) -> None:
        self.env_id, self.options, self.spec, self.timeout = env_id, options, spec, timeout
        self.rows = ENVIRONMENTS * spec.seats
        self.engine = False
        """Whether it is an engine of many, whose code is not the user's."""

    def unit(self, seed: int, shaping: base.ShapingSource, ledger: Ledger) -> tuple[base.Unit, Ledger | None]:
        """Make a unit, with witnesses if that is possible."""
        made = (registry.make_raw(self.env_id, replace(self.options, first_row=row)) for row in count())
        raw = next(made)
        self.engine = raw is None
        if not isinstance(raw, gymnasium.Env):
            if raw is not None:
                close_in_time(raw)
            return registry.make_unit(self.env_id, self.rows, seed, self.options, shaping), None
        given = chain([raw], made)

        def make() -> gymnasium.Env[Any, Any]:
            env = next(given)
            assert isinstance(env, gymnasium.Env)
            return _Witness(env, ledger)

        return GymUnit(self.env_id, make, self.rows, seed, shaping), ledger

    def reset_only(self, seed: int, limit: AbstractContextManager[None]) -> None:
        """Make and reset it within a limit of time; its exceptions pass through."""
        with ExitStack() as end, limit:
            unit, _ = self.unit(seed, _Source(self.spec.shaping), Ledger())
            end.callback(close_in_time, unit)  # after the limit has ended
            unit.reset(base.private_step_arrays(self.spec, self.rows))

    def play(self, steps: int, seed: int, shaping: Mapping[str, float] | None = None) -> Played:
        """Play this many steps of each row, always with the same actions."""
        values = self.spec.shaping if shaping is None else shaping
        source = _Source(values)
        unit, ledger = self.unit(seed, source, Ledger())
        played, out = Played(ledger, remarks=source.remarks), base.private_step_arrays(self.spec, self.rows)
        watch = Watch(source.remark)
        rng = np.random.default_rng(0)
        with ExitStack() as end:
            end.callback(lambda: source.remarks.extend(filter(None, [close_in_time(unit)])))
            try:
                with self._step_limit():
                    unit.reset(out)
                for _ in range(steps):
                    action = base.random_actions(self.spec, out, rng, base.untrained_within)
                    with self._step_limit():
                        before = time.perf_counter()
                        unit.step(action, out)
                        seconds = time.perf_counter() - before
                    played.seconds += seconds
                    watch.note(out, seconds)
                    _note(played, out)
                watch.judge()
            except EnvSetupError as error:
                played.broke = str(error).removeprefix(f"{self.env_id}: ")
            except Exception as error:  # noqa: BLE001 - whatever it raises is what we report
                played.broke = f"it raised {type(error).__name__}\n{environment_traceback(error)}"
        return played

    def _step_limit(self) -> Any:
        return time_limit(
            self.timeout, f"it hangs: a step took more than {self.timeout:g} s (--timeout-seconds)"
        )


def _note(played: Played, out: base.StepArrays) -> None:
    """Record one step."""
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
