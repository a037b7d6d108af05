"""Checks of the methods of an environment: which methods there are, and their parameters."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

from pbt_rl.errors import EnvSetupError

from .shaping import SHAPING_METHODS, find_interface
from .user_values import attribute, has_methods


def can_be_called(method: Any, *arguments: object, **keywords: object) -> bool:
    """Check whether a method has parameters for these arguments. True if its signature is unknown.

    The method is not called.
    """
    try:
        inspect.signature(method).bind(*arguments, **keywords)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        pass
    return True


def check_reset(env_id: str, env: Any) -> None:
    """Raise EnvSetupError if the innermost `reset` does not accept `seed`.

    If there are wrappers, `reset` must also accept `options`.
    """
    single = isinstance(env, gymnasium.Env)
    bare = (attribute(env, "unwrapped") or env) if single else env
    arguments = {"seed": None} | ({} if env is bare else {"options": None})  # wrappers pass both arguments
    if has_methods(bare, ("reset",)) and not can_be_called(bare.reset, **arguments):
        results = " and return (observation, info). In step return (observation, reward, terminated, truncated, info)"
        raise EnvSetupError(
            f"{env_id}: its reset{inspect.signature(bare.reset)} does not accept the arguments "
            f"({', '.join(arguments)}), or needs more. Write `def reset(self, *, seed=None, options=None)`"
            + (results if single else "")
        )


def check_methods(env_id: str, env: Any) -> None:
    """Raise EnvSetupError if a method for shaping or training info has wrong parameters.

    Also raises EnvSetupError if the environment has only one of the two shaping methods.
    """
    there = [name for name in SHAPING_METHODS if has_methods(env, (name,))]
    if len(there) == 1 and not find_interface(env):
        raise EnvSetupError(
            f"{env_id} has only {there[0]}. Reward shaping needs {' and '.join(SHAPING_METHODS)}"
        )
    for name, *taken in (
        ("get_default_reward_shaping",),
        ("set_reward_shaping", "reward_shaping", "agent_idx"),
        ("set_training_info", "info"),
    ):
        if has_methods(env, (name,)) and not can_be_called(getattr(env, name), *taken):
            raise EnvSetupError(
                f"{env_id}: its {name} does not accept the arguments ({', '.join(taken)}). Write "
                f"`def {name}({', '.join(('self', *taken))})`"
            )
