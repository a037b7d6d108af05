"""What an id that names no environment may have meant: names without their family or misspelt, files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePath

from ..family import Family, load_backend

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
    last = env_id.rpartition("/")[2]
    by_plain: dict[str, str] = {}
    # The newest version of what the first family has stays; a simulator on the device is named where nothing else is.
    order = [*families.items()]
    order.reverse()
    order.sort(key=lambda item: not item[1].on_device)
    for family, known in order:
        for name in () if known.missing else known.load().names():
            if name == last and not known.on_device:
                return f"write {family}/{name}"
            by_plain[_plain(name)] = f"{family}/{name}"
    close = difflib.get_close_matches(_plain(last), by_plain, n=2, cutoff=0.8)
    if close:
        return f"did you mean {' or '.join(by_plain[name] for name in close)}?"
    if OWN_ID.fullmatch(last):
        return f"write gym/{last}, or gym/MODULE:{last} if a module of yours registers it"
    return _dotted(env_id)


def atari_game(env_id: str) -> str:
    """Return `atari/GAME` for Gymnasium's id of a game, such as ALE/Pong-v5 or PongNoFrameskip-v4; "" for any other."""
    match = ATARI_ID.fullmatch(env_id)
    if match is None or find_spec("ale_py") is None:
        return ""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower()
    return f"atari/{snake}" if snake in load_backend(".ale").names() else ""


def _plain(name: str) -> str:
    """Return a name without its version and its spelling: HalfCheetah-v5 is halfcheetah."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v\d+$", "", name).lower())


def _module(env_id: str) -> str:
    path, _, name = env_id.partition(":")
    file, factory = PurePath(path), name or "make_env"
    if file.is_absolute() or ".." in file.parts:
        return f"write {file.stem}:{factory} and run from the folder {file.parent}"
    return f"write {'.'.join(file.with_suffix('').parts)}:{factory}, as Python imports it from the working directory"


def _dotted(env_id: str) -> str:
    """Return module:factory for `module.factory`, or a module alone, that lies in the working directory."""
    *parts, last = env_id.split(".")
    for module, factory in (("/".join(parts), last), ("/".join([*parts, last]), "make_env")):
        if module and (Path(f"{module}.py").is_file() or Path(module, "__init__.py").is_file()):
            return _module(f"{module}.py:{factory}")
    return ""
