"""What an id that names no environment may have meant: ids of other trainers, files, names without their family."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePath

from .family import Family, load_backend

QUICK = ("atari", "gym", "toy", "vizdoom")
"""Families whose names are known without importing an engine."""
MUJOCO = {"pendulum": "invertedpendulum", "doublependulum": "inverteddoublependulum", "walker": "walker2d"}
"""Sample Factory's name -> Gymnasium's, where they differ by more than spelling."""
ATARI_ID = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")

OWN_ID = re.compile(r"[\w:.-]+-v\d+")
"""As Gymnasium has them, of whatever package."""


def meant(env_id: str, families: Mapping[str, Family]) -> str:
    """Return what to write instead, as the end of a sentence; "" if nothing is like it."""
    if ".py" in env_id:
        return _module(env_id)
    game = atari_game(env_id)
    if game:
        return f"write {game}"
    names = {
        f"{family}/{name}": name
        for family in QUICK
        if family in families and not families[family].missing
        for name in families[family].load().names()
    }
    last = env_id.rpartition("/")[2]
    plain = _plain(last)
    exact = [full for full, name in names.items() if name in (env_id, last)]
    same = exact or [full for full, name in names.items() if _plain(name) == plain]
    if not exact and _is_registered(env_id):
        same = [f"gym/{env_id}"]
    if same:
        return f"write {' or '.join(same[:3])}"
    by_plain = {_plain(name): full for full, name in names.items()}
    close = difflib.get_close_matches(plain, by_plain, n=2, cutoff=0.8)
    if close:
        return f"did you mean {' or '.join(by_plain[name] for name in close)}?"
    if OWN_ID.fullmatch(last):
        return f"if a module of yours registers it, write gym/MODULE:{last}"
    return _dotted(env_id)


def of_sample_factory(env_id: str) -> str:
    """Return what Sample Factory's name of an environment is here, as the end of a sentence; "" for any other."""
    kind, _, rest = env_id.partition("_")
    plain = _plain(rest)
    found: list[str] = []
    if env_id == "dmlab_30":
        found = ["dmlab30"]
    elif kind == "atari" and find_spec("ale_py") is not None:
        found = [f"atari/{name}" for name in load_backend(".ale").names() if _plain(name) == plain]
    elif kind == "mujoco" and find_spec("gymnasium") is not None:
        import gymnasium  # noqa: PLC0415 - families are imported when used

        wanted = MUJOCO.get(plain, plain)
        same = [spec for spec in gymnasium.registry.values() if _plain(spec.name) == wanted]
        found = [f"gym/{max(same, key=lambda spec: spec.version or 0).id}"] if same else []
    return f"write {found[0]}" if found else ""


def atari_game(env_id: str) -> str:
    """Return `atari/GAME` for Gymnasium's id of a game, such as ALE/Pong-v5 or PongNoFrameskip-v4; "" for any other."""
    match = ATARI_ID.fullmatch(env_id)
    if match is None or find_spec("ale_py") is None:
        return ""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower()
    return f"atari/{snake}" if snake in load_backend(".ale").names() else ""


def _is_registered(gym_id: str) -> bool:
    """Whether Gymnasium knows the id, even if a package that it needs is missing."""
    if find_spec("gymnasium") is None:
        return False
    import gymnasium  # noqa: PLC0415 - families are imported when used

    return gym_id in gymnasium.registry


def _plain(name: str) -> str:
    """Return a name without its version and its spelling: VizdoomBasic-v0 is basic."""
    stem = re.sub(r"-v\d+$", "", name).lower()
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^(viz)?doom_?", "", stem) or stem)


def _dotted(env_id: str) -> str:
    """Return module:factory for `module.factory`, or a module alone, that lies in the working directory."""
    *parts, last = env_id.split(".")
    for module, factory in (("/".join(parts), last), ("/".join([*parts, last]), "make_env")):
        if module and (Path(f"{module}.py").is_file() or Path(module, "__init__.py").is_file()):
            return (
                f"write {module.replace('/', '.')}:{factory}, as Python imports it from the working directory"
            )
    return ""


def _module(env_id: str) -> str:
    path, _, name = env_id.partition(":")
    file = PurePath(path)
    factory = f"{name or 'make_env'}"
    if file.is_absolute() or ".." in file.parts:
        return f"write {file.stem}:{factory} and run from the folder {file.parent}"
    return f"write {'.'.join(file.with_suffix('').parts)}:{factory}, as Python imports it from the working directory"
