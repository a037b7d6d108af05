"""Environments that other packages register with Gymnasium on import.

`PACKAGE/ID` means `gym/PACKAGE:ID`, for any installed package. If an id begins with a prefix in PACKAGES, the id alone
suffices, such as `gym/MiniGrid-Empty-5x5-v0`. Some packages register their environments in a function instead of on
import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec


def _register_minatar() -> None:
    import_module("minatar.gym").register_envs()


@dataclass(frozen=True)
class Package:
    """Package that registers environments.

    module: import name.
    ids: prefixes of the ids that the package registers.
    register: function that registers the environments, called after the import if no id is registered yet.
    usual: default id.
    """

    module: str
    ids: tuple[str, ...]
    register: Callable[[], None] | None = None
    usual: str = ""


def _register_crafter() -> None:
    registry = import_module("gymnasium")
    for name, reward in (("CrafterReward-v1", True), ("CrafterNoReward-v1", False)):
        registry.register(name, "pbt_rl.envs.old_gym:make_crafter", kwargs={"reward": reward})


PACKAGES: Mapping[str, Package] = {
    "minigrid": Package("minigrid", ("MiniGrid-", "BabyAI-")),
    "minatar": Package("minatar", ("MinAtar/",), _register_minatar),
    "highway_env": Package("highway_env", ()),
    "dm_control": Package("shimmy", ("dm_control/",)),
    "popgym": Package("popgym", ("popgym-",)),
    "shimmy": Package("shimmy", ()),
    "crafter": Package("crafter", ("Crafter",), _register_crafter, "CrafterReward-v1"),
}
"""PACKAGE in `PACKAGE/ID` -> package."""
EXTRAS = {
    "gymnasium.envs.box2d": "Box2D",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.phys2d": "jax",
    "gymnasium.envs.tabular": "jax",
    "shimmy": "shimmy",
}
"""Prefix of the entry points of registered environments -> required package."""
EXTRA_GROUPS = {"box2d", "mujoco"}
"""Extras of Gymnasium, as in `pip install "gymnasium[box2d]"`."""


def named_by(env_id: str) -> str:
    """Convert `package/ID` to Gymnasium's `package:ID`. A missing ID is replaced by the package's default id.

    Returns "" if the package is not installed, or if the id is missing and the package has no default.
    """
    head, _, name = env_id.partition("/")
    package = head.lower().replace("-", "_")
    known = PACKAGES.get(package)
    if known is not None and find_spec(known.module) is not None:
        return f"{package}:{name or known.usual}" if name or known.usual else ""
    installed = name and re.fullmatch(r"\w+", package) and find_spec(package) is not None
    return f"{package}:{name}" if installed else ""


def registered(gym_id: str) -> str:
    """Import the package that registers an id, and return the registered id.

    gym_id: `ID` or `package:ID`. The ID may lack its namespace or the package's prefix. If no registered id fits, or if
    several ids fit, `gym_id` is returned unchanged. Raises ImportError if a package of PACKAGES cannot be imported.
    """
    known_ids = import_module("gymnasium").registry
    if gym_id in known_ids:
        return gym_id
    package, colon, name = gym_id.rpartition(":")
    if colon:
        known = PACKAGES.get(package.lower().replace("-", "_"))
    else:
        known = next((one for one in PACKAGES.values() if one.ids and gym_id.startswith(one.ids)), None)
    if known is not None and find_spec(known.module) is None:
        known = None
    if known is None and not colon:
        return gym_id
    before = set(known_ids)
    try:
        import_module(package if known is None else known.module)
    except ModuleNotFoundError:
        if known is not None:
            raise
        return gym_id  # `gymnasium.make` then raises the error
    if (
        known is not None
        and known.register is not None
        and not any(one.startswith(known.ids) for one in known_ids)
    ):
        known.register()
    if name in known_ids:
        return name
    # The id may lack its namespace or the package's prefix.
    prefixes = (f"{package}/", f"{package}-", *(one for other in PACKAGES.values() for one in other.ids))
    ends = [one for one in known_ids if one.lower() in {f"{prefix}{name}".lower() for prefix in prefixes}]
    ends = ends or [one for one in set(known_ids) - before if one.rpartition("/")[2] == name]
    return str(ends[0]) if len(ends) == 1 else gym_id


def registered_ids() -> Mapping[str, str]:
    """Return id -> subpackage of `gymnasium.envs` ("" outside Gymnasium) for the registered ids.

    Left out are Atari's ids, and ids whose entry point is not a string.
    """
    found = {}
    for env_id, spec in import_module("gymnasium").registry.items():
        point = spec.entry_point if isinstance(spec.entry_point, str) else ""
        if point and not point.startswith("ale_py"):
            own = re.match(r"gymnasium\.envs\.(\w+)\.", point)
            found[env_id] = own[1] if own else ""
    return found


def absent() -> str:
    """Return a line for each missing extra of Gymnasium, with its environments and the pip command."""
    ids: dict[str, list[str]] = {}
    for env_id, group in registered_ids().items():
        ids.setdefault(group, []).append(env_id)
    return "".join(
        f"gym/  Gymnasium's {group}: {package} is missing, for {', '.join(f'gym/{one}' for one in ids[group])}; "
        f'pip install "gymnasium[{group}]"\n'
        for prefix, package in EXTRAS.items()
        if (group := prefix.rpartition(".")[2]) in EXTRA_GROUPS & ids.keys() and find_spec(package) is None
    )
