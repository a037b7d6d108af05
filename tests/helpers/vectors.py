"""Vector environments as units. An extra plays them: without it, a test that asks for one is left out."""

import pytest


def vector_unit(*arguments):
    """Make a `VectorUnit`."""
    return pytest.importorskip("pbt_rl.envs.vectors.unit").VectorUnit(*arguments)
