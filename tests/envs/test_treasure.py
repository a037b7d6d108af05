"""The toy that is seen as an image."""

import numpy as np
import pytest

from tests.envs.test_toy import objectives, play, uniform


def test_treasure_is_found_by_walking_towards_it():
    def towards(obs):
        cells = obs[:, :, ::4, ::4].reshape(len(obs), 2, -1).argmax(-1)
        (row, to_row), (column, to_column) = (x.T for x in np.divmod(cells, 7))
        vertical = np.where(to_row < row, 0, 1)
        return np.where(row != to_row, vertical, np.where(to_column < column, 2, 3))

    assert (objectives("treasure", towards) == 1).all()
    assert objectives("treasure", uniform(4), steps=4000).mean() == pytest.approx(0.2, abs=0.05)


def test_treasure_ends_at_the_treasure_or_by_the_limit():
    _, _, first, done, objective = play("treasure?length=6", uniform(4), rows=2, steps=200)
    lengths = [np.diff(np.flatnonzero(done[:, row]), prepend=-1) - 1 for row in range(2)]
    assert max(map(max, lengths)) == 6
    assert set(objective[done].tolist()) == {0.0, 1.0}
    assert first.any()
