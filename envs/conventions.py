"""Detection of environment bugs that raise no error, and of other trainers' conventions that have no effect here.

`pbt-rl envs check` reports both kinds. Training runs fewer checks than this command: when an environment is made, at
resets, at ends of episodes, and in the first steps of a run.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from .base import (
    ACTION_MASK,
    MOST_STATS,
    STAT_NAME_BYTES,
    ActionSpec,
    EnvSpec,
    SavesState,
    ShapingSource,
    StepArrays,
)
from .shaping import default_shaping
from .signatures import check_methods, check_reset
from .spaces import parts_of
from .user_values import array_of, attribute, briefly, metadata_of, number_of, wrapped

NORMALIZING = {"NormalizeReward", "VecNormalize", "ClipReward"}
"""Class names of wrappers that change the scale of rewards."""
RECORDING = {"RecordEpisodeStatistics", "Monitor"}
"""Class names of wrappers that report the inner environment's return in `info["episode"]["r"]`."""


def notes_of(env_id: str, env: Any) -> tuple[str, ...]:
    """Return warnings about possibly unintended settings: `EnvSpec.notes`.

    Raises EnvSetupError if `reset` or a method for shaping or training info has wrong parameters, or if the environment
    has only one of the two shaping methods.
    """
    check_reset(env_id, env)
    for one in wrapped(env):
        check_methods(env_id, one)
    zeros = [name for name, value in default_shaping(env_id, env).items() if value == 0]
    of_shaping = (
        f"shaping {name} is 0 by default, and is therefore tuned only within a range that you set: "
        f"--pbt.tune shaping.{name}=LOW:HIGH"
        for name in zeros
    )
    return (*of_shaping, *_reward_notes(env))


def _reward_notes(env: Any) -> tuple[str, ...]:
    """Return a warning if a wrapper scales the rewards and no wrapper inside that wrapper records the true return."""
    changing: set[str] = set()
    for one in wrapped(env):
        bases = {base.__name__ for base in type(one).__mro__}
        changing = set() if bases & RECORDING else bases & NORMALIZING or changing
    text = (
        f"rewards are changed by {', '.join(changing)}, with separate statistics in each row, but members are ranked "
        "by the sums of these rewards: remove the wrapper (the learner normalises returns), or put "
        'RecordEpisodeStatistics inside it, or return info["true_objective"]'
    )
    return (text,) if changing else ()


def mistakes_of(
    env: Any, obs: spaces.Space[Any], action: ActionSpec, *, masked: bool = False
) -> tuple[str, ...]:
    """Return warnings about bugs that raise no error: `EnvSpec.mistakes`.

    obs: observation space.
    masked: True if the caller already uses an action mask.
    """
    found = [normalised(type(one).__name__) for one in wrapped(env) if _normalises(one)]
    choices, parts = sum(action.nvec), {name: part for name, part, _ in parts_of(obs)}
    if masked or ACTION_MASK in parts or not choices or metadata_of(env).get(ACTION_MASK):
        return tuple(found)
    for one in wrapped(env):
        found += [f"its method {name}() {UNREAD}" for name in dir(type(one)) if _is_mask_method(one, name)]
        for name, value in getattr(one, "__dict__", {}).items():
            listed = _MOVES.search(name) and _is_mask(name, value, choices, 1)
            if listed and len(np.unique(value)) < choices:  # not a list of all choices
                found.append(f"its attribute {name} {UNREAD}")
    for name, space in parts.items():
        fits = math.prod(space.shape or ()) == choices
        if fits and _MASK.search(name.rpartition(".")[2]) and (_MOVES.search(name) or _is_binary(space)):
            found.append(f"observation {name!r} {UNREAD}")
    return tuple(found)


def normalised(kind: str) -> str:
    """Return the warning about normalised observations. kind: class name of the wrapper, or a description."""
    return (
        f"observations are normalised by {kind}, whose statistics are not saved with a member: each environment has "
        "separate statistics, and eval, export and resume begin without statistics, which changes their scores. "
        "Remove the wrapper and set --learner.normalize-observations yes. The statistics of this option are saved with "
        "each member"
    )


_RUNNING = re.compile(r"Running(MeanStd|Stat|Norm)|Welford|ZFilter|MeanStdFilter")
"""Class names of running statistics for normalisation."""
_MOMENTS = ({"mean"}, {"var", "std", "m2"}, {"count", "n"})
"""Last words of attribute names, such as `var` in `running_var`. An object counts as a running statistic if it has an
attribute for each of the three sets.
"""


def _normalises(env: Any) -> bool:
    """Check whether a wrapper updates running statistics of observations, as in Gymnasium, SB3 and Baselines."""
    named = {base.__name__ for base in type(env).__mro__} & {"NormalizeObservation", "VecNormalize"}
    own = _of_observations(env)
    if inspect.isfunction(func := own.get("func")):  # an attribute of TransformObservation
        own |= inspect.getclosurevars(func).nonlocals
    kept = [*own.values(), *([env] if hasattr(type(env), "observation") else [])]
    running = {"obs_rms", "ob_rms"} & own.keys() or any(map(_keeps_std, kept))
    return bool(named or running) and attribute(env, "update_running_mean") is not False


def _of_observations(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object, except attributes about rewards, returns, episodes or lengths.

    Names are in lower case and without leading underscores.
    """
    own = {name.lstrip("_").lower(): value for name, value in getattr(thing, "__dict__", {}).items()}
    return {name: own[name] for name in own if not name.startswith(("ret", "rew", "ep", "len"))}


def _keeps_std(thing: Any) -> bool:
    words = {name.rpartition("_")[2] for name in _of_observations(thing)}
    return bool(_RUNNING.search(type(thing).__name__)) or all(words & names for names in _MOMENTS)


UNREAD = (
    'looks like an action mask but is not used: return it as info["action_mask"] and set metadata = '
    '{"action_mask": True}, or return it as the key action_mask of the outermost Dict of the observation'
)
_MASK = re.compile(r"mask|valid(?!at)|avail|legal|allowed|possible|feasible|permitted", re.IGNORECASE)
"""Words in names of action masks in other trainers."""
_MOVES = re.compile(r"action|move", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]?[a-z]+")
_OTHERS = re.compile(r"get|compute|in|im|not|current|all|list|agent|fn")
"""Further words that may occur in the name of a method that returns a mask."""


def _is_mask_method(env: Any, name: str) -> bool:
    """Check whether `name` is a usual name of an action mask.

    Only properties of `env` and methods without required parameters count.
    """
    words = _WORD.findall(name)
    known = all(_MASK.search(word) or _MOVES.match(word) or _OTHERS.fullmatch(word.lower()) for word in words)
    if name.startswith("_") or not (known and _MASK.search(name) and _MOVES.search(name)):
        return False
    method = inspect.getattr_static(env, name)
    try:
        return isinstance(method, property) or inspect.signature(getattr(env, name)).bind() is not None
    except (TypeError, ValueError):
        return False


def _is_binary(space: Any) -> bool:
    if isinstance(space, spaces.Box):
        return bool((space.low == 0).all() and (space.high == 1).all())
    return isinstance(space, spaces.MultiBinary) or bool(np.all(getattr(space, "nvec", 0) == 2))


def _is_mask(name: Any, value: Any, choices: int, rows: int) -> bool:
    """Check whether a named value looks like an action mask (of one row or all rows), or a list of allowed choices.

    choices: number of discrete choices of all components.
    rows: number of rows that the value may cover.
    """
    if not isinstance(name, str) or name.startswith("_") or not _MASK.search(name):
        return False
    try:
        given = list(value) if isinstance(value, set | frozenset) else value
        parts = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        flat = np.hstack([array_of(part).ravel() for part in parts])
    except (TypeError, ValueError):
        return False
    if flat.dtype.kind not in "biuf" or not flat.size:
        return False
    listed = _MOVES.search(name) and flat.dtype.kind in "iu" and flat.size <= rows * choices
    return bool(
        (flat.size in (choices, rows * choices) and np.isin(flat, (0, 1)).all())
        or (listed and flat.min() >= 0 and flat.max() < choices)
    )


# -- during steps

_LIMIT = re.compile(r"time_?(out|limit)|truncat|bad_transition", re.IGNORECASE)
"""Names of flags for a truncation in the old gym interface and in other trainers."""
MISSING_FINAL = (
    "missing final observation: at all {} truncations the observation is {}. Return the last observation of the old "
    "episode, because the learner needs its value (do not reset inside step)"
)
FIRST_OF_NEXT = "the first observation of the next episode"
FINALS = ("final_obs", "final_observation", "terminal_observation")
"""Names of the final observations in the infos of vector environments that reset in the step that ends an episode."""
NEW_SPACES = "its spaces change while it runs, but training reads them once, at the start"
NEW_DEFAULTS = (
    "shaping: get_default_reward_shaping returns other values after set_reward_shaping; always return the defaults, in "
    "a new dict"
)
LOOKS = 2
"""Number of truncations that are checked for a reset inside the step."""
DISTINCT_FINALS, MOST_FINALS = 3, 10
"""Limits of the search for wrong final observations, which are equal to the first observation of the next episode.

The search ends at the first correct final observation, or after DISTINCT_FINALS different wrong ones. With same-step
resets, it also ends after MOST_FINALS wrong ones.
"""
WRONG_FINAL = (
    f"wrong final observation: at all {{}} truncations final_obs is {FIRST_OF_NEXT}. Copy the last observation of the "
    "old episode before the reset, because the learner needs its value"
)
NO_RESET = (
    'no reset: after all {} ends, reset(options={{"reset_mask": ...}}) returned the final observation of the old '
    "episode. Reset the rows of the mask, and return their first observations"
)
INFORMS = 'info["episode_extra_stats"]'
"""Prefix of warnings about problems that do not affect training."""


_CONVERTED = re.compile("stretched to 0..255|^float")
"""Text in `ArraySpec.given` of a picture that was float, or whose bounds were stretched."""


class ConventionWarnings:
    """Detector of environment bugs that raise no error. Each kind of warning is sent once (see `once`)."""

    def __init__(self, source: ShapingSource, spec: EnvSpec, rows: int = 1) -> None:
        """source: shaping source of a vector env.

        The source's optional attribute `warn` is called with each warning.

        rows: number of rows that an info dict covers.
        """
        tell: Callable[[str], None] | None = getattr(source, "warn", None)
        self._say = once(tell or (lambda _text: None))
        self.reads = tell is not None
        """True while the info dicts of all steps are checked. The check lasts until the end of the first episode, and
        never starts if `source` lacks `warn`.
        """
        self._choices = 0 if ACTION_MASK in spec.obs else sum(spec.action.nvec)
        self._spec, self._rows, self._seen = spec, rows, set[Any]()
        self._given = set[bool]()
        self._reset: _KeptReset | None = None
        self._looks = list[bool]()
        self.compares_finals = tell is not None
        """True until enough final observations are compared."""
        self._cuts, self._finals = 0, set[bytes]()
        """_cuts: number of ends whose final observation equals the first observation of the next episode.
        _finals: these final observations, except those that equal the observation one step earlier.
        """

    def of_info(self, info: Any) -> None:
        """Warn of an entry in an info dict that looks like an action mask but is not used."""
        if not self.reads or not isinstance(info, Mapping):
            return
        for name in info.keys() - self._seen:
            if info[name] is None:
                continue
            self._seen.add(name)
            inner = info[name] if isinstance(info[name], Mapping) else {}
            for place, value in {name: info[name], **{f"{name}.{key}": inner[key] for key in inner}}.items():
                if self._choices and _is_mask(place, value, self._choices, self._rows):
                    self._say(f'info["{place}"] {UNREAD}')

    def of_next_step(self, info: Mapping[str, Any], *, pays: bool) -> None:
        """Warn of a vector environment that declares NEXT_STEP but seems to use another mode.

        pays: True if the step after the end of an episode has returned a reward or the end of another episode.
        """
        finals = [name for name in FINALS if name in info]
        found = f'infos have "{finals[0]}"' if finals else "the step after an end has a reward or another end"
        if finals or pays:
            self._say(
                f'metadata["autoreset_mode"] may be wrong: it is NEXT_STEP, but {found}. Declare the mode that the '
                "environment uses. With NEXT_STEP, the step after an end is the reset, and has the reward 0"
            )

    def of_masked_reset(self, *, changed: bool) -> None:
        """Warn if a reset with a mask has changed the observation of another row."""
        if changed:
            self._say(
                'reset(options={"reset_mask": ...}) changes the observation of a row outside the mask: reset only the '
                "rows of the mask, and return the last observation of the other rows"
            )

    def of_end(self, info: Mapping[str, Any], *, terminated: bool) -> None:
        """Warn if an episode is terminated although a flag of the old gym or of other trainers reports a truncation.

        info: last info dict of the episode.
        """
        for name in filter(tells_limit, info if terminated else ()):
            kinds = "bi" if name == "TimeLimit.truncated" else "b"  # under other names, 1 may be a duration
            with suppress(ValueError):  # a ragged list
                flag = array_of(info[name])
                if flag.size == 1 and flag.dtype.kind in kinds and flag.all():
                    self._say(
                        f'info["{name}"] is true, but step returned terminated=True and truncated=False: the learner '
                        "treats the time limit as a terminal state of value 0. Return terminated=False, truncated=True"
                    )

    def of_first_obs(self, space: Any, obs: Any) -> None:
        """Warn of an array with another dtype than its space, and of a clipped picture. obs: observation of a reset."""
        if not self.reads:
            return
        pictures = set(converted_pictures(self._spec))
        for name, box, array in boxes(space, obs):
            if array.dtype.kind not in "fiub":  # the later conversion raises an error
                continue
            if array.dtype != box.dtype:
                self._say(
                    f"observation {name!r} has dtype {array.dtype}, but its space has {box.dtype}: it is converted"
                )
            if name in pictures and (text := _clipped(box, array)):
                self._say(f"picture {name!r} is clipped, because it has {text}: set the bounds to its range")

    def of_spaces(self, now: object, given: object) -> None:
        """Warn if the spaces of an environment have changed. now, given: its present spaces, and those at the start."""
        if self.reads and now != given:
            self._say(NEW_SPACES)

    def of_rewards(self, rewards: Mapping[Any, Any], needed: Iterable[Any]) -> None:
        """Warn if agents that have acted get no reward. rewards: agent -> reward. needed: agents that have acted."""
        if self.reads and (missing := [str(name) for name in needed if name not in rewards]):
            self._say(
                f"no reward for {', '.join(missing)}, which counts as 0: return a reward for every agent that has acted"
            )

    def of_shaping(self, defaults: Callable[[], Mapping[str, float]]) -> None:
        """Warn if an environment has other default shaping than at the start.

        defaults: function that returns the present default shaping.
        """
        if self.reads and self._spec.shaping and defaults() != self._spec.shaping:
            self._say(NEW_DEFAULTS)

    def follow(self, env: Any) -> None:
        """Start to record the observations that `reset` of the innermost environment returns.

        The recording ends after LOOKS truncations. Environments that save their state are not recorded.
        """
        bare: Any = attribute(env, "unwrapped") or env
        # Environments that save their state are excluded, because the state would include the new attribute.
        if (
            self.reads
            and not isinstance(env, SavesState)
            and "reset" not in getattr(bare, "__dict__", {"reset"})
        ):
            with suppress(Exception):  # user code may forbid new attributes
                bare.reset = self._reset = _KeptReset(bare)

    def of_begin(self) -> None:
        """Forget the recorded observations. Call this after each reset of the environment by its vector env."""
        if self._reset is not None:
            self._reset.observed.clear()

    def of_cut(self, obs: Any) -> None:
        """Warn if the environment resets itself inside the step that truncates an episode.

        obs: observation that the step returned.
        """
        if self._reset is None:
            return
        with suppress(Exception):  # `==` of user data may raise
            self._looks.append(
                any(data_equivalence(first, obs, exact=True) for first in self._reset.observed)
            )
        if len(self._looks) == LOOKS:
            self._reset.remove()
            self._reset = None
            if all(self._looks):
                self._say(MISSING_FINAL.format(LOOKS, FIRST_OF_NEXT))

    def of_finals(
        self,
        rows_R: NDArray[np.bool_],
        before: Mapping[str, NDArray[Any]],
        final: Mapping[str, NDArray[Any]],
        first: Mapping[str, NDArray[Any]],
        *,
        same_step: bool = True,
    ) -> None:
        """Warn if final observations are equal to the first observations of the next episodes.

        rows_R: True for truncated episodes. If a reset with a mask follows the last step: True for all ended episodes.
        before, final, first: observations before the last step, after the last step, and after the reset.
        same_step: False if a reset with a mask follows the last step.
        """
        for row in np.flatnonzero(rows_R).tolist():
            was, last, new = (
                b"".join(obs[name][row].tobytes() for name in obs if name != ACTION_MASK)
                for obs in (before, final, first)
            )
            if not self.compares_finals or last != new:
                self.compares_finals = False
                return
            self._cuts += 1
            if last != was:  # constant observations are legal
                self._finals.add(last)
            # Without same-step resets, episodes may begin and end with the same observation, such as zeros.
            if len(self._finals) >= DISTINCT_FINALS or (same_step and self._cuts >= MOST_FINALS):
                self.compares_finals = False
                if self._finals:
                    self._say((WRONG_FINAL if same_step else NO_RESET).format(self._cuts))

    def of_stats(self, out: StepArrays, row: int, stats: Any) -> None:
        """Write `info["episode_extra_stats"]` (name -> finite number) of a row's episode to `out`.

        These statistics are only displayed and logged. Invalid entries, and entries after the first MOST_STATS valid
        entries, are dropped. Names are cut to STAT_NAME_BYTES in UTF-8.
        """
        out.stat_values[row] = np.nan
        if stats is None:
            return
        wrong, kept = "", 0
        for name, value in stats.items() if isinstance(stats, Mapping) else [("", stats)]:
            encoded = name.encode(errors="replace") if isinstance(name, str) else b""
            number = _finite(value)
            if kept == MOST_STATS or not encoded or number is None or len(encoded) > STAT_NAME_BYTES:
                wrong = wrong or f"{briefly(name)}: {briefly(value)}"
            if kept < MOST_STATS and encoded and number is not None:
                out.stat_names[row, kept] = encoded[:STAT_NAME_BYTES].decode(errors="ignore").encode()
                out.stat_values[row, kept] = number
                kept += 1
        if wrong:
            self._say(
                f"{INFORMS} is not recorded completely: it has {wrong}. Return a dict of at most {MOST_STATS} finite "
                f"numbers, with names of at most {STAT_NAME_BYTES} bytes"
            )

    def of_objective(self, *, given: bool) -> None:
        """Record whether an episode had a true objective.

        Warn if only some episodes have a true objective, or if only steps before the last step have it. Also warn if
        the environment has reward shaping without a true objective.
        """
        self.reads = False
        self._given.add(given)
        if "true_objective" in self._seen and True not in self._given:
            self._say(
                'info["true_objective"] is missing in the last step of every episode, but other steps have it: return '
                "it in the last step, whether terminated or truncated"
            )
        elif len(self._given) > 1:
            self._say(
                'info["true_objective"] is missing at some episode ends: return it in the last step of every episode, '
                "whether terminated or truncated"
            )
        elif self._spec.shaping and not given:
            self._say(
                'there is reward shaping but no info["true_objective"]: members are ranked by the shaped return, '
                "which changes with the shaping alone. Return the true objective in the last step of every episode"
            )


class _KeptReset:
    """Wrapper of an environment's `reset` that records the observations. Pickling stores the original method."""

    def __init__(self, env: Any) -> None:
        functools.update_wrapper(self, env.reset)  # for its signature
        self._env, self._method = env, env.reset
        self.observed = list[Any]()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        answer = self._method(*arguments, **keywords)
        self.observed.append(answer[0] if isinstance(answer, tuple) else None)
        return answer

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._env, "reset")

    def remove(self) -> None:
        """Restore the original `reset` of the environment."""
        vars(self._env).pop("reset", None)


def converted_pictures(spec: EnvSpec) -> Iterator[str]:
    """Yield the names of the uint8 pictures that were floats, or whose bounds were stretched to 0 and 255."""
    return (n for n, array in spec.obs.items() if array.dtype == "uint8" and _CONVERTED.search(array.given))


def once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes each text to `tell` once.

    Texts that are equal up to the first colon count as equal.
    """
    told = set[str]()

    def say(text: str) -> None:
        kind = text.partition(":")[0]
        if kind not in told:
            told.add(kind)
            tell(text)

    return say


def tells_limit(name: object) -> bool:
    """Check whether a name in an info dict is possibly a flag for a truncation."""
    return isinstance(name, str) and _LIMIT.search(name) is not None


def boxes(space: Any, obs: Any) -> Iterator[tuple[str, spaces.Box, NDArray[Any]]]:
    """Yield (name, space, array) of each Box in an observation. Values that cannot become arrays are skipped."""
    for name, part, value in parts_of(space, obs):
        if isinstance(part, spaces.Box):
            with suppress(ValueError):
                yield name, part, array_of(value)


def _clipped(box: spaces.Box, array: NDArray[Any]) -> str:
    """Describe a number that is outside its bounds by more than 1/255 of their range, or return ""."""
    if array.shape != box.shape:
        return ""
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    level = (high - low) / 255
    outside = (array < low - level) | (array > high + level)
    if not outside.any():
        return ""
    number, least, most = (part[outside].flat[0] for part in (array, low, high))
    return f"{number:g} where {least:g} to {most:g} are allowed"


def _finite(value: Any) -> float | None:
    try:
        number = number_of(value)
    except Exception:  # noqa: BLE001 - the user's conversion may raise anything
        return None
    return number if math.isfinite(number) else None
