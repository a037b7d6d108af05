"""The episode book: sums begin anew with an episode, keep their precision, and carry the version of the shaping."""

import numpy as np
import pytest

from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, private_step_arrays
from pbt_rl.envs.episodes import EpisodeBook, write_reset

SPEC = EnvSpec("a/b", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(2,)))
FIELDS = ("objective", "raw_return", "shaped_return", "length", "shaping_version")


def written(book, objective_R=None):
    out = private_step_arrays(SPEC, len(book.raw_R))
    book.write(out, objective_R)
    return {name: getattr(out, name).tolist() for name in FIELDS}


def test_sums_are_of_the_running_episode_only():
    versions = iter([(3, {"a": 1.0}), (4, {"a": 1.0}), (9, {"a": 2.0})])
    book = EpisodeBook(2, lambda _row: next(versions))
    assert [book.open_episode(0), book.open_episode(1)] == [{"a": 1.0}, {"a": 1.0}]
    for _ in range(3):
        book.add(np.array([1.0, 2.0]), np.array([0.5, 0.25], np.float32), np.array([True, False]))
    assert written(book) == {
        "objective": [3, 6],
        "raw_return": [3, 6],
        "shaped_return": [1.5, 0.75],
        "length": [3, 0],
        "shaping_version": [3, 4],
    }
    assert book.open_episode(1) == {"a": 2.0}
    assert written(book) == {
        "objective": [3, 0],
        "raw_return": [3, 0],
        "shaped_return": [1.5, 0],
        "length": [3, 0],
        "shaping_version": [3, 9],
    }


def test_objectives_and_rows_may_be_added_alone():
    book = EpisodeBook(2, lambda _row: (0, {}))
    book.add(np.ones(2), np.ones(2), True)
    accounts = written(book, np.array([7.0, 8.0]))
    assert (accounts["objective"], accounts["raw_return"], accounts["length"]) == ([7, 8], [1, 1], [1, 1])
    book = EpisodeBook(3, lambda _row: (0, {}))
    book.add(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([True, True]), np.array([2, 0]))
    accounts = written(book)
    assert accounts["raw_return"] == [2, 0, 1]
    assert accounts["length"] == [1, 0, 1]


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
