"""The family atari/: Atari games on ale-py, with lazy construction (lazy_atari.py) if the run allows it."""

from __future__ import annotations

from .ale import AtariVectorEnv, names, probe
from .atari import AtariOptions, raw_scores, recipe
from .base import ShapingSource, VectorEnv
from .family import Backend, EnvOptions
from .lazy_atari import lazy_vector_env


def _make_vector_env(
    game: str, rows: int, seed: int, options: EnvOptions, shaping: ShapingSource
) -> VectorEnv:
    """Make a vector env. With lazy construction (see `lazy_vector_env`), some emulators are made later."""
    arguments = (game, rows, seed, options.of(AtariOptions), shaping)
    return lazy_vector_env(*arguments) or AtariVectorEnv(*arguments)


BACKEND = Backend(
    names=names,
    probe=lambda name, options: probe(name, options.of(AtariOptions)),
    make_vector_env=_make_vector_env,
    recipe=lambda _name, _options: recipe(),
    begins="creating the first emulators",
    for_evaluation=lambda options: options.with_family(raw_scores(options.of(AtariOptions))),
)
