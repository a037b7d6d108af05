"""Check of an environment for changes since a run began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pbt_rl.controllers.events import Spec, SpecArray, Start
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.record.journal import journal_events


def check_environment(run: Path, spec: EnvSpec, note: Callable[[str], None], *, trains: bool) -> None:
    """Raise ConfigError if the environment of a run has changed so that its networks or values no longer fit.

    If the journal is missing, damaged or older than this check, nothing is compared.
    run: folder of the run. spec: present environment.
    note: function that is called with a warning if only the action bounds differ.
    trains: True if training continues. Only in this case, the names of shaping, the number of agents, and the name of a
    single observation are compared, too.
    """
    try:
        start = next(journal_events(run), None)
    except (ConfigError, OSError):
        return  # functions that need the journal report the error
    if not isinstance(start, Start) or start.spec is None or start.spec.obs is None:
        return
    was = start.spec
    now = {name: SpecArray(tuple(one.shape), one.dtype) for name, one in spec.obs.items()}
    found = _observations(start.spec.obs, now, named=trains)
    found += _actions(was, spec)
    if trains:
        gone, new = was.shaping.keys() - spec.shaping.keys(), spec.shaping.keys() - was.shaping.keys()
        found += [f"shaping {name} is gone" for name in sorted(gone)]
        found += [f"shaping {name} is new" for name in sorted(new)]
        agents = was.seats if was.agents is None else was.agents
        found += [f"agents are {spec.agents}, were {agents}"] * (agents not in (None, spec.agents))
    if found:
        raise ConfigError(
            f"{spec.env_id} has changed since {run} was trained: {'; '.join(found)}. Undo these changes, or train "
            f"another run from its weights: pbt-rl train --env {spec.env_id} --init-from {run} --init-strict no"
        )
    if was.action is not None and (
        was.action.low not in (None, spec.action.low) or was.action.high not in (None, spec.action.high)
    ):
        note(f"warning: the action bounds of {spec.env_id} have changed since {run} was trained")


def _observations(was: Mapping[str, SpecArray], now: Mapping[str, SpecArray], *, named: bool) -> list[str]:
    """Describe the differences between observations. named: compare names even if there is only one observation."""
    before, after = ({name: _described(one) for name, one in obs.items()} for obs in (was, now))
    if not named and len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    return [
        f"observation {name!r} is {after.get(name, 'gone')}, was {before.get(name, 'not there')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _described(array: SpecArray) -> str:
    return f"{array.shape} {array.dtype}"


def _actions(was: Spec, now: EnvSpec) -> list[str]:
    if was.action is None:
        return []
    before = _named(was.action.nvec, len(was.action.low or ()))
    after = _named(now.action.nvec, len(now.action.low))
    return [f"actions are {after}, were {before}"] if before != after else []


def _named(choices: Sequence[int], numbers: int) -> str:
    parts = [f"{' x '.join(map(str, choices))} choices"] * bool(choices)
    parts += [f"{numbers} numbers"] * bool(numbers)
    return " and ".join(parts)
