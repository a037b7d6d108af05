"""Rows that scripts append to and go on from."""

import argparse
import sys

import pytest

from tests.helpers.runs import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "lab"))

from results_rows import append_rows, read_rows, seed_range


def test_rows_are_appended_under_one_head(tmp_path):
    path = tmp_path / "new" / "x.csv"
    assert read_rows(path) == []
    append_rows(path, ("seed", "score"), [(0, 1.5), (0, 2.5)])
    append_rows(path, ("seed", "score"), [(1, 3.5)])
    assert path.read_text() == "seed,score\n0,1.5\n0,2.5\n1,3.5\n"
    assert read_rows(path)[2] == {"seed": "1", "score": "3.5"}


def test_the_file_of_another_script_is_left_as_it_is(tmp_path):
    path = tmp_path / "x.csv"
    append_rows(path, ("arm", "seed"), [("a", 0)])
    with pytest.raises(SystemExit, match="has the columns arm, seed, not seed, score: nothing is written"):
        append_rows(path, ("seed", "score"), [(1, 3.5)])
    assert path.read_text() == "arm,seed\na,0\n"


def test_seeds_are_first_and_end():
    assert list(seed_range("3:5")) == [3, 4]


@pytest.mark.parametrize("text", ["5", "", "3:", ":3", "5:3", "3:3", "a:b", "-1:2", "0:1:2"])
def test_other_seeds_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not FIRST:END"):
        seed_range(text)
