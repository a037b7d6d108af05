"""Episode statistics are precise, and a reset clears the fields of the last step."""

import numpy as np
import pytest

from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, private_step_arrays
from pbt_rl.envs.episode_book import EpisodeBook, write_reset

SPEC = EnvSpec("a/b", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(2,)))


def test_returns_are_summed_in_double_precision():
    book = EpisodeBook(1, lambda _row: (0, {}))
    for _ in range(10):
        book.add(np.array([0.1]), np.array([0.1], np.float32), True)
    assert book.raw_R[0] == sum([0.1] * 10)
    assert book.shaped_R[0] == pytest.approx(10 * float(np.float32(0.1)), abs=1e-12)


def test_a_reset_clears_what_the_last_step_wrote():
    out = private_step_arrays(SPEC, 2)
    out.reward[:] = 5
    out.terminated[:] = out.truncated[:] = out.episode_done[:] = True
    write_reset(out)
    assert out.first.all()
    assert not any(array.any() for array in (out.reward, out.terminated, out.truncated, out.episode_done))
