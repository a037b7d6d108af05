"""`scripts/lab/mutants.py`: its texts are still in the code. The mutants themselves take minutes."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import mutants  # noqa: E402
from mutants_list import MUTANTS, Mutant  # noqa: E402


def test_every_text_is_once_in_its_file_and_every_test_is_there():
    assert mutants.stale(MUTANTS) == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 45
    assert all(mutant.text != mutant.instead for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [("algos/appo.py", "no such line", "0 times"), ("algos/appo.py", "gamma", "times in algos/appo.py")],
)
def test_a_text_that_is_gone_is_said(path, text, said):
    (problem,) = mutants.stale((Mutant("x", path, text, ""),))
    assert said in problem


def test_a_mutant_that_no_test_notices_survives_and_another_dies(tmp_path):
    (tmp_path / "lines.py").write_text("TWO = 2\n")
    (tmp_path / "test_code.py").write_text("from lines import TWO\n\n\ndef test_it():\n    assert TWO > 1\n")
    dies, lives = (Mutant("x", "lines.py", "TWO = 2", f"TWO = {n}", ("test_code.py",)) for n in (1, 3))
    assert not mutants.survives(dies, tmp_path)
    assert mutants.survives(lives, tmp_path)
    assert (tmp_path / "lines.py").read_text() == "TWO = 2\n"
