"""The user's own simulators: `module:factory` with the parameters `rows` and `device`; it may take `seed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import time_limits
from ..base import EnvSpec, ShapingSource, Unit
from ..custom import check_keywords, find_factory, takes
from ..family import Backend, EnvOptions
from ..time_limits import making, time_limit
from .kinds import ADAPTED, adapted_resident, filmed, unit_of_resident


def probe(env_id: str, options: EnvOptions) -> EnvSpec:
    """Make one row on the CPU, describe it and close it."""
    for tell in time_limits.told_of_long:
        tell()
    with time_limit(time_limits.LONG_SECONDS, making(env_id, long=True)):
        simulator = make_resident(env_id, 1, 0, "cpu", options)
        simulator.close()
        spec: EnvSpec = simulator.spec
        return spec


def make_resident(env_id: str, rows: int, seed: int, device: str, options: EnvOptions) -> Any:
    """Call the factory of a `ResidentEnv`."""
    from .rows import check_made  # noqa: PLC0415 - it imports torch

    factory = find_factory(env_id)
    given: Mapping[str, Any] = {**options.keywords, "rows": rows, "device": device}
    if takes(factory, "seed"):
        given = {"seed": seed, **given}
    later = {name: value for name, value in given.items() if name in ADAPTED and not takes(factory, name)}
    arguments = {name: value for name, value in given.items() if name not in later}
    check_keywords(env_id, factory, arguments)
    env: Any = adapted_resident(env_id, factory(**arguments), later)
    check_made(env, env_id, rows)
    env.spec = replace(env.spec, env_id=env_id, resident=True)
    return env


def _make_unit(name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    return unit_of_resident(name, rows, seed, shaping, options, make_resident)


def _film(
    name: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> tuple[Unit, Any] | None:
    """Let the factory draw if it can be told."""
    drawing = {"render_mode": "rgb_array"} if takes(find_factory(name), "render_mode") else {}
    keywords = {**drawing, **options.keywords}
    return filmed(make_resident(name, rows, seed, "cpu", replace(options, keywords=keywords)), shaping)


BACKEND = Backend(names=tuple, probe=probe, make_unit=_make_unit, film=_film, make_resident=make_resident)
