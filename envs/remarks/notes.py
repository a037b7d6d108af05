"""What the author of an environment may not have meant, read from what it declares."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, cast

import gymnasium

from ..base import EnvSetupError
from ..shaping import INFO_METHODS, SHAPING_METHODS, default_shaping, find_interface
from ..values import attribute, has_methods, wrapped

CLOSE = 0.9
"""Likeness of a method's name (of 1) from which it is a misspelt one of ours."""
NORMALIZING = ("NormalizeReward", "VecNormalize", "ClipReward")
"""Wrappers whose rewards are in a unit of their own."""
CALLED: Mapping[str, tuple[str, ...]] = {
    "get_default_reward_shaping": (),
    "set_reward_shaping": ("reward_shaping", "agent_idx"),
    "set_training_info": ("info",),
}
"""Method -> its arguments, all by place."""
RECORDING = ("RecordEpisodeStatistics", "Monitor")
"""Wrappers that report the return of what they wrap in `info["episode"]["r"]`."""


def notes(env_id: str, env: Any) -> tuple[str, ...]:
    """See `envs.base.notes_of`. Raises EnvSetupError for a method that is missing, misspelt or called otherwise."""
    if isinstance(env, gymnasium.Env):
        _check_reset(env_id, env)
    _check_names(env_id, env, INFO_METHODS if find_interface(env) else SHAPING_METHODS + INFO_METHODS)
    return (*_shaping_notes(default_shaping(env_id, env)), *_reward_notes(env))


def _check_reset(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    """Raise EnvSetupError if `reset` cannot be called as it is later: by the interface of before Gymnasium."""
    bare = attribute(env, "unwrapped") or env
    arguments = {"seed": None} | ({} if env is bare else {"options": None})  # wrappers pass both
    try:
        inspect.signature(bare.reset).bind(**arguments)
    except (ValueError, AttributeError):  # written in C, or not there
        return
    except TypeError:
        raise EnvSetupError(
            f"{env_id}: its reset does not take {' and '.join(arguments)}: write `def reset(self, *, seed=None, "
            "options=None)`, which returns (observation, info); step returns (observation, reward, terminated, "
            "truncated, info)"
        ) from None


def _check_names(env_id: str, env: Any, names: tuple[str, ...]) -> None:
    """Raise EnvSetupError for a method that is there without its other half, or under another spelling."""
    for one in wrapped(env):
        there = [name for name in SHAPING_METHODS if has_methods(one, (name,))]
        for name in names:
            if has_methods(one, (name,)):
                continue
            meant = _misspelt(cast("Hashable", type(one)), name)
            if not meant and (not there or name not in SHAPING_METHODS):
                continue
            why = f"it has {meant}: did you mean {name}?" if meant else f"it has {there[0]}, but no {name}."
            raise EnvSetupError(
                f"{env_id}: {why} Reward shaping needs both {' and '.join(SHAPING_METHODS)}"
                if name in SHAPING_METHODS
                else f"{env_id}: {why}"
            )
        for name in {*CALLED} & {*there, *names}:
            if has_methods(one, (name,)):
                _check_call(env_id, getattr(one, name), name)


def _check_call(env_id: str, method: Any, name: str) -> None:
    """Raise EnvSetupError if a method cannot be called as it is in training."""
    try:
        inspect.signature(method).bind(*CALLED[name])
    except TypeError:
        taken = ", ".join(CALLED[name])
        raise EnvSetupError(
            f"{env_id}: its {name} does not take ({taken}): write `def {name}(self, {taken})`"
        ) from None
    except ValueError:  # written in C
        return


@lru_cache(maxsize=256)
def _misspelt(kind: Any, name: str) -> str:
    """Return a method of a class whose name is nearly this one, if there is one."""
    ours = {*SHAPING_METHODS, *INFO_METHODS}
    others = [other for other in dir(kind) if other not in ours and callable(getattr(kind, other, None))]
    return next(iter(difflib.get_close_matches(name, others, 1, CLOSE)), "")


def _shaping_notes(shaping: Mapping[str, float]) -> tuple[str, ...]:
    """Return what to know of default values."""
    zeros = [name for name, value in shaping.items() if value == 0]
    return tuple(
        f"shaping {name} begins at 0 and stays there, as PBT multiplies values: give it a range to tune it, "
        f"--pbt.tune shaping.{name}=LOW:HIGH"
        for name in zeros
    )


def _reward_notes(env: Any) -> tuple[str, ...]:
    """Return a note if a wrapper normalises or clips the rewards, and nobody inside it reports the true return."""
    kinds = [{base.__name__ for base in type(one).__mro__} for one in wrapped(env)]
    changing = [place for place, bases in enumerate(kinds) if not bases.isdisjoint(NORMALIZING)]
    if not changing or any(not bases.isdisjoint(RECORDING) for bases in kinds[changing[-1] :]):
        return ()
    name = next(name for name in NORMALIZING if name in kinds[changing[-1]])
    text = (
        f"rewards are changed by {name}, and members are compared by sums of them, each row's by "
        "statistics of its own: leave it out (returns are normalised by the learner), put RecordEpisodeStatistics "
        'inside it, or give info["true_objective"]'
    )
    return (text,)
