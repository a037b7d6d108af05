"""The family `atari`: games on ale-py, with lazy construction where a run allows it."""

from __future__ import annotations

from .ale import AtariUnit, names, probe
from .atari import AtariOptions, raw_scores, recipe
from .base import ShapingSource, Unit
from .family import Backend, EnvOptions
from .growing import unit_that_grows


def _make_unit(game: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource) -> Unit:
    """Make a vector env, with lazy construction if the run allows it."""
    arguments = (game, rows, seed, options.of(AtariOptions), shaping)
    return unit_that_grows(*arguments) or AtariUnit(*arguments)


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.of(AtariOptions)),
    make_unit=_make_unit,
    recipe=lambda _name, _options: recipe(),
    begins="creating the first emulators",
    for_evaluation=lambda options: options.with_family(raw_scores(options.of(AtariOptions))),
)
