"""Lookup of environments by id: `family/name`, or `module:factory` for the user's own environments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl import registry
from pbt_rl.errors import EnvSetupError
from pbt_rl.options.values import free_value

from .base import (
    LAST,
    ArraySpec,
    EnvSpec,
    FamilyOptions,
    FollowsMatchups,
    MatchupSource,
    SavesState,
    ShapingSource,
    SpreadsPhases,
    StepArrays,
    VectorEnv,
    cpu_clock,
)
from .family import Backend, EnvOptions, Family, RawEnv, load_backend
from .lazy_construction import LazilyConstructed
from .packages import PACKAGES, named_by, registered_ids
from .shaping import with_critic


def with_last(spec: EnvSpec) -> EnvSpec:
    """Add LAST to the observations if the environment has no observation LAST."""
    if LAST in spec.obs:
        return spec
    numbers = sum(spec.action.nvec) + len(spec.action.low)
    return replace(spec, obs={**spec.obs, LAST: ArraySpec((numbers + 1,), "float32")})


class LastActionVectorEnv:
    """Wrapper that adds the last action and reward to the observations, as the array LAST.

    Contents: the last discrete choices as one-hot, the last continuous components, then the learner's reward clipped
    to -1..1. All numbers are 0 in steps that set `first`, such as the start of an episode.
    """

    def __init__(self, vector_env: VectorEnv) -> None:
        assert LAST not in vector_env.spec.obs, "the environment already returns the last action and reward"
        self._vector_env = vector_env
        self.spec, self.rows = with_last(vector_env.spec), vector_env.rows
        self.cpu_ns = cpu_clock(vector_env)
        nvec = vector_env.spec.action.nvec
        self._starts_A = np.cumsum((0, *nvec[:-1])) if nvec else np.zeros(0, np.int64)
        self._choices = sum(nvec)
        self._every_row = np.arange(self.rows)[:, None]
        self._given: StepArrays | None = None

    def reset(self, out: StepArrays) -> None:
        self._vector_env.reset(self._inner_of(out))
        out.obs[LAST][:] = 0

    def step(self, action: NDArray[Any], out: StepArrays) -> None:
        self._vector_env.step(action, self._inner_of(out))
        last = out.obs[LAST]
        last[:] = 0
        discrete = len(self._starts_A)
        last[self._every_row, self._starts_A + action[:, :discrete].astype(np.int64)] = 1
        last[:, self._choices : -1] = action[:, discrete:]
        np.clip(out.reward, -1, 1, out=last[:, -1])
        last[out.first] = 0

    def _inner_of(self, out: StepArrays) -> StepArrays:
        """Return `out` without LAST, for the inner vector env.

        The latest result is cached, and reused if the next call passes the same `out`.
        """
        if self._given is not out:
            own = {name: array for name, array in out.obs.items() if name != LAST}
            self._given, self._inner = out, replace(out, obs=own)
        return self._inner

    def close(self) -> None:
        self._vector_env.close()

    def follow(self, matchups: MatchupSource) -> None:
        assert isinstance(self._vector_env, FollowsMatchups), (
            "only vector envs with several agents follow matchups"
        )
        self._vector_env.follow(matchups)

    def spread_phases(self, rng: np.random.Generator) -> bool:
        return isinstance(self._vector_env, SpreadsPhases) and self._vector_env.spread_phases(rng)

    @property
    def incomplete(self) -> bool:
        return isinstance(self._vector_env, LazilyConstructed) and self._vector_env.incomplete

    def construct_more(self) -> None:
        assert isinstance(self._vector_env, LazilyConstructed), "the vector env is complete"
        self._vector_env.construct_more()

    def save_state(self) -> dict[str, Any] | None:
        """Return the state of the inner vector env. The wrapper itself is stateless."""
        return self._vector_env.save_state() if isinstance(self._vector_env, SavesState) else None

    def restore_state(self, state: dict[str, Any]) -> None:
        assert isinstance(self._vector_env, SavesState)
        self._vector_env.restore_state(state)


FAMILIES: registry.Registry[Family] = registry.FAMILIES
__all__ = ["FAMILIES", "EnvOptions", "Family", "FamilyOptions"]
"""Re-exported names of other modules."""
DEFAULTS = EnvOptions()
_VERSION = re.compile(r"(-ram)?(NoFrameskip|Deterministic)?-v\d+$")
"""Suffix of Gymnasium ids."""


def keywords(env_option: Iterable[str]) -> dict[str, Any]:
    """Parse pairs `key=value` of --env-option. A value is JSON, a Python literal, a number such as 5M, or a string.

    Raises EnvSetupError if a pair has no `=`, or if a key is not a Python identifier or is given twice.
    """
    found: dict[str, Any] = {}
    for pair in env_option:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier() or key in found:
            remedy = (
                "it is given twice" if key in found else "write key=value, with a Python identifier as key"
            )
            raise EnvSetupError(f"--env-option {pair:.200} cannot be used: {remedy}")
        found[key] = free_value(text)
    return found


def probe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Return an environment's spec. Raises EnvSetupError if the environment cannot be made."""
    backend, name = backend_of(env_id, options)
    spec = backend.probe(name, options)
    if options.last_action_reward:
        spec = with_last(spec)
    return with_critic(spec, options.critic_only)


def make_vector_env(
    env_id: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> VectorEnv:
    """Make a vector env of R rows.

    seed: determines the episodes for given actions, except in lazily made Atari (lazy_atari.py), in environments with a
    reason in `Backend.unreproducible`, and in environments that ignore their seed.
    """
    backend, name = backend_of(env_id, options)
    return seeing(backend.make_vector_env(name, rows, seed, options, shaping), options)


def make_simulator(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Make a device simulator (`SimulatorEnv`) of R rows. `EnvSpec.simulator` must be True for this id.

    device: name of a torch device.
    """
    backend, name = backend_of(env_id, options)
    assert backend.make_simulator is not None, f"{env_id} is not a device simulator"
    return backend.make_simulator(name, rows, seed, device, options)


def recipe(env_id: str, options: EnvOptions = DEFAULTS) -> dict[str, object]:
    """Return the default options of a run: dotted name of a config field -> value."""
    backend, name = backend_of(env_id, options)
    return backend.recipe(name, options)


def make_raw(env_id: str, options: EnvOptions) -> RawEnv | None:
    """Make one unwrapped environment. None if single environments cannot be made."""
    backend, name = backend_of(env_id, options)
    return None if backend.make is None else backend.make(name, options)


def evaluation_options(env_id: str, options: EnvOptions) -> EnvOptions:
    """Return the options for the evaluation of a run's members."""
    backend, _ = backend_of(env_id, options)
    return backend.for_evaluation(options)


def shown_name(env_id: str, options: EnvOptions) -> str:
    """Return the displayed id under these options. For example, an evaluation on DMLab uses a test level."""
    backend, name = backend_of(env_id, options)
    shown = backend.shown(name, options)
    return env_id if shown == name else f"{env_id.partition('/')[0]}/{shown}"


def seeing(vector_env: VectorEnv, options: EnvOptions) -> VectorEnv:
    """Add the last action and reward to the observations if the options request them."""
    return (
        LastActionVectorEnv(vector_env)
        if options.last_action_reward and LAST not in vector_env.spec.obs
        else vector_env
    )


def plugins() -> dict[str, EntryPoint]:
    """Return the entry points `pbt_rl.envs` of installed packages: name -> entry point."""
    return {point.name: point for point in entry_points(group="pbt_rl.envs")}


def family_of(env_id: str) -> Family | None:
    """Return the family of an id. None for the user's own environments. Raises EnvSetupError for an unknown id."""
    key, slash, name = _full(env_id).partition("/")
    if key not in FAMILIES and (":" in key or key in plugins()):
        return None
    if slash and name and key in FAMILIES:
        return FAMILIES[key]
    close = sorted(difflib.get_close_matches(key, FAMILIES), key=lambda family: FAMILIES[family].on_device)
    near = f"did you mean {close[0]}/{name or 'NAME'}?" if close else ""
    package = PACKAGES.get(re.split(r"\W|_", env_id.lower())[0])
    if package is not None and find_spec(package.module) is None:
        hint = f"{key.lower()} belongs to the package {package.module}, which is not installed"
    else:
        hint = ("" if near and (slash or key in FAMILIES) else _meant(env_id)) or near
    if not hint:
        known = ", ".join(f"{family}/NAME" for family in FAMILIES)
        hint = f"write {known} (family/name), or module:factory for your own."
    raise EnvSetupError(
        f"Unknown environment {env_id!r}: {hint}{'' if hint[-1] in '?.' else '.'} `pbt-rl envs` lists all"
    )


def _meant(env_id: str) -> str:
    """Return a suggestion for an unknown id, as part of an error message. Return "" if no id is similar."""
    if ".py" in env_id or (env_id.isidentifier() and Path(f"{env_id}.py").is_file()):
        module = env_id.partition(".py")[0].strip("./").replace("/", ".")
        return f"write {module}:{env_id.partition(':')[2] or 'make_env'}, as Python imports it"
    words = re.findall(r"[A-Za-z0-9]+", _VERSION.sub("", env_id))
    known: dict[str, str] = {}
    # If several families have the name, the first is suggested. Families on the device come last.
    for family in sorted(FAMILIES.values(), key=lambda family: family.on_device):
        names = registered_ids() if family.name == "gym" else family.names()
        known = {_plain(name): f"{family.name}/{name}" for name in names} | known
    known |= {_plain(short): short for short in SHORT_NAMES}
    tails = ["".join(words[begin:]).lower() for begin in range(len(words))]
    found = [known[tail] for tail in tails if tail in known][:1]
    if not found and re.fullmatch(r"[\w.-]+-v\d+", env_id):
        return f"write gym/{env_id}, or gym/MODULE:{env_id} if your own module registers it"
    near = (difflib.get_close_matches(tail, known, 2, 0.8) for tail in tails)
    close = found or [known[one] for one in next(filter(None, near), [])]
    return f"did you mean {' or '.join(close)}?" if close else ""


def _plain(name: str) -> str:
    """Reduce a name to lower-case letters and digits, without its version: HalfCheetah-v5 becomes halfcheetah."""
    return re.sub(r"[^a-z0-9]", "", _VERSION.sub("", name).lower())


def backend_of(env_id: str, options: EnvOptions) -> tuple[Backend, str]:
    """Return (backend, name within the family) of an environment.

    For the user's own environments, the name is the whole id. Raises EnvSetupError for an unknown id, for a missing
    package, and if the options have keywords that the family does not support.
    """
    family = family_of(env_id)
    if family is None:
        return load_backend(".custom"), env_id
    if family.missing:
        raise EnvSetupError(f"{env_id} needs the package {', '.join(family.missing)}: {family.install_hint}")
    if options.keywords and not family.takes_keywords:
        takers = ", ".join(f"{one.name}/" for one in FAMILIES.values() if one.takes_keywords)
        raise EnvSetupError(
            f"--env-option {next(iter(options.keywords))}=... cannot be used with {family.name}/. It applies to "
            f"{takers} and to your own environments. Remove the option"
        )
    return family.load(), _full(env_id).partition("/")[2]


def _full(env_id: str) -> str:
    """Expand a short name (`dmlab30`), or an id of a package (`minigrid/...`), to `family/name`.

    Other ids are returned unchanged.
    """
    full = SHORT_NAMES.get(env_id, env_id)
    head = full.partition("/")[0]
    if head in FAMILIES or ":" in full or head in plugins() or find_spec("gymnasium") is None:
        return full
    found = named_by(full)
    return f"gym/{found}" if found else full


SHORT_NAMES = {short: env for family in FAMILIES.values() for short, env in family.short_names.items()}
"""Short name -> id of an environment, for all families."""
