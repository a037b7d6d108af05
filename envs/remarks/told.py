"""Remarks of a unit that is stepped, each told once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..base import MOST_STATS, STAT_NAME_BYTES, Remarks, ShapingSource, StepArrays
from ..values import briefly, number_of

MASK_UNREAD = (
    'info["action_mask"] is given but not used: set metadata = {"action_mask": True} on the environment, or give the '
    "mask as the key action_mask of a Dict observation"
)
NO_OBJECTIVE = (
    'there is reward shaping but no info["true_objective"]: members are compared by the shaped return, which a member '
    "raises by its shaping alone; give the true objective at every episode's end"
)
INFORMS = 'info["episode_extra_stats"]'
"""A remark that begins with this is about what decides nothing."""
OBJECTIVE_AT_SOME = (
    'info["true_objective"] is missing at some episode ends: give it with the last step of every episode, terminated '
    "or truncated"
)


def write_stats(out: StepArrays, row: int, stats: Any) -> str:
    """Write a row's `info["episode_extra_stats"]` at its episode's end: name -> finite number.

    Returns what is wrong with some of them, which are left out; empty if nothing is. They inform, and nothing more:
    no more than MOST_STATS are kept, and STAT_NAME_BYTES of a name in UTF-8.
    """
    out.stat_values[row] = np.nan
    if stats is None:
        return ""
    if not isinstance(stats, Mapping):
        return f"it is no dict of numbers but {briefly(stats)}"
    wrong, slot = "", 0
    for name, value in stats.items():
        encoded = name.encode(errors="replace")[:STAT_NAME_BYTES] if isinstance(name, str) else b""
        number = _finite(value)
        if slot == MOST_STATS:
            wrong = f"it has {len(stats)} names, {MOST_STATS} at most"
            break
        if not encoded:
            wrong = f"{briefly(name)} is no name"
            continue
        if number is None:
            wrong = f"{briefly(name)} is {briefly(value)}, no finite number"
            continue
        if len(encoded) == STAT_NAME_BYTES and encoded != name.encode(errors="replace"):
            wrong = f"the name {briefly(name)} is longer than {STAT_NAME_BYTES} bytes"
        encoded = encoded.decode(errors="ignore").encode()
        out.stat_names[row, slot], out.stat_values[row, slot] = encoded, number
        slot += 1
    return wrong


def _finite(value: Any) -> float | None:
    try:
        number = number_of(value)
    except Exception:  # noqa: BLE001 - the conversion is theirs
        return None
    return number if math.isfinite(number) else None


class Told(Remarks):
    """Tells whoever steps a unit."""

    def __init__(self, source: ShapingSource) -> None:
        self._tell: Callable[[str], None] | None = getattr(source, "remark", None)
        self._told = set[str]()
        self._given = set[bool]()

    def _say(self, text: str) -> None:
        """Tell it. Texts that differ only behind a colon are one."""
        kind = text.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            if self._tell is not None:
                self._tell(text)

    def unread_mask(self) -> None:
        """See `Remarks`."""
        self._say(MASK_UNREAD)

    def of_observation(self, space: Any, obs: Any) -> None:
        """See `Remarks`. Tells of arrays of another dtype than their space."""
        for name, box, array in boxes(space, obs, ()):
            if array.dtype != box.dtype and array.dtype.kind in "fiub":  # else the unit refuses it
                self._say(
                    f"observation {name!r} has dtype {array.dtype}, its space has {box.dtype}: it is converted"
                )

    def of_stats(self, out: StepArrays, row: int, stats: Any) -> None:
        """See `Remarks`."""
        wrong = write_stats(out, row, stats)
        if wrong:
            self._say(f"{INFORMS} is not recorded as it is: {wrong}")

    def of_objective(self, info: Any, *, given: bool, shaping: bool) -> None:
        """See `Remarks`. Tells if it is missing, and what may be meant to be it."""
        self._given.add(given)
        if len(self._given) > 1:
            self._say(OBJECTIVE_AT_SOME)
            return
        if given:
            return
        meant = (
            _meant(tuple(key for key in info if isinstance(key, str))) if isinstance(info, Mapping) else ""
        )
        hint = f"did you mean true_objective by {meant}?" if meant else ""
        if shaping:
            self._say(NO_OBJECTIVE + (f" ({hint})" if hint else ""))
        elif hint:
            self._say(f'info["true_objective"] is missing, so members are compared by the return: {hint}')


@lru_cache(maxsize=64)
def _meant(names: tuple[str, ...]) -> str:
    """Return the name that is nearly true_objective, if there is one."""
    return next(iter(difflib.get_close_matches("true_objective", names, 1, 0.8)), "")


def boxes(space: Any, obs: Any, path: tuple[str, ...]) -> Iterator[tuple[str, spaces.Box, NDArray[Any]]]:
    """Yield name, space and array of each Box of an observation."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        for key, part in space.spaces.items():
            if key in obs:
                yield from boxes(part, obs[key], (*path, str(key)))
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list):
        for place, (part, value) in enumerate(zip(space.spaces, obs, strict=False)):
            yield from boxes(part, value, (*path, str(place)))
    elif isinstance(space, spaces.Box):
        yield ".".join(path) or "obs", space, np.asarray(obs)
