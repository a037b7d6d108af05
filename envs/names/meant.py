"""What an id that names no environment may have meant: names without their family or misspelt, files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from ..family import Family, load_backend
from .packages import packages, registered, registered_ids

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
    words = re.findall(r"[A-Za-z0-9]+", re.sub(r"-v\d+$", "", env_id))
    package = packages().get(words[0].lower()) if words else None
    if package is not None and find_spec(package.module) is None:
        return f"{words[0].lower()}/NAME needs the package {package.module}, which is not installed"
    if package is not None:
        with suppress(ImportError):  # then it registers nothing
            registered(f"{words[0]}:{env_id}")
    last = env_id.rpartition("/")[2]
    by_plain: dict[str, str] = {}
    by_whole: dict[str, str] = {}
    # The newest version of what the first family has stays; a simulator on the device is named where nothing else is.
    order = [*families.items()]
    order.reverse()
    order.sort(key=lambda item: not item[1].on_device)
    for family, known in order:
        by_plain |= {_plain(short): short for short in known.short_names}
        for group, name in _names(family, known):
            if name == last and not known.on_device:
                return f"write {family}/{name}"
            by_plain[_plain(name)] = by_whole[_plain(group + name)] = f"{family}/{name}"
    hint = _like(_plain(last), by_plain)
    if not hint and OWN_ID.fullmatch(last):
        return f"write gym/{last}, or gym/MODULE:{last} if a module of yours registers it"
    hint = hint or _dotted(env_id) or _like(_plain(env_id), by_whole)
    tails = ["".join(words[begin:]).lower() for begin in range(1, len(words))]
    found = next((by_plain[tail] for tail in tails if tail in by_plain), "")
    return hint or (f"did you mean {found}?" if found else "")


def _names(family: str, known: Family) -> Iterator[tuple[str, str]]:
    """Yield the names of a family, each with what people write before it: mujoco_ant is gym/Ant-v5."""
    if known.missing:
        return
    yield from ((family, name) for name in known.load().names())
    if family == "gym":  # those whose package is missing too: their error names it
        yield from registered_ids()


def _like(plain: str, known: Mapping[str, str]) -> str:
    close = [plain] if plain in known else difflib.get_close_matches(plain, known, n=2, cutoff=0.8)
    return f"did you mean {' or '.join(known[name] for name in close)}?" if close else ""


def instead(gym_id: str, known: Sequence[str]) -> str:
    """See `envs.family.Names`."""
    there = gym_id in import_module("gymnasium").registry
    close = [] if there else [f"gym/{name}" for name in difflib.get_close_matches(gym_id, known)]
    close = close or list(filter(None, [atari_game(gym_id)]))
    if close:
        return f" Did you mean {', '.join(close)}?"
    return (
        "" if there or ":" in gym_id else f" If a module of your own registers it, write gym/MODULE:{gym_id}."
    )


def attribute(module: Any, place: Any, name: str) -> str:
    """See `envs.family.Names`."""
    own, file = Path(f"{module.__name__.replace('.', '/')}.py"), getattr(module, "__file__", None) or "Python"
    if own.is_file() and own.resolve() != Path(file).resolve():
        return f"it comes from {file}, which hides the file {own}: give that another name"
    public = [n for n, v in vars(place).items() if callable(v) and not n.startswith("_")]
    close = difflib.get_close_matches(name, public, 1)
    return f"did you mean {close[0]}?" if close else f"it has {', '.join(public) or 'no functions':.200}"


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
