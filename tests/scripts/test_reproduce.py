"""`scripts/lab/reproduce.py`: what takes no time is run whole; of the rest, the parts that judge."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "lab"
sys.path.insert(0, str(SCRIPTS))

import reproduce  # noqa: E402
import reproduce_rl  # noqa: E402
from reproduce_table import near  # noqa: E402


def test_operators_are_as_the_papers_have_them():
    rows = reproduce.t8()
    assert len(rows) == 10
    assert [row.what for row in rows if not row.passed] == []


def test_a_figure_beside_the_expected_one_fails_where_it_should():
    assert near("x", 0.39, 0.3905, 0.001).passed
    assert not near("x", 0.39, 0.3915, 0.001).passed
    assert not near("x", 0.39, float("nan"), 0.001).passed


def test_an_interval_is_students():
    mean, half = reproduce_rl.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(1.9632, abs=1e-3)  # 2.776 * sqrt(2.5 / 5)
    assert not reproduce_rl.compared("x", [1.0, 1.0, 1.0], [2.0, 1.5, 0.9], "").passed


def test_every_run_has_its_own_defaults_within_the_bounds():
    words = reproduce_rl.drawn_defaults(3)
    assert words[::2] == ["--hypers.learning-rate", "--hypers.entropy-coef", "--hypers.clip-ratio"]
    assert 1e-6 <= float(words[1]) <= 1e-2
    assert words == reproduce_rl.drawn_defaults(3) != reproduce_rl.drawn_defaults(4)


def test_numbers_that_do_not_exist_are_said_to_be_missing(tmp_path):
    command = [
        sys.executable,
        str(SCRIPTS / "reproduce.py"),
        "--only",
        "T2,T8",
        "--json",
        str(tmp_path / "x"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "T2  is not in the list" in done.stdout
    assert "10 figures as expected, 0 not" in done.stdout
    assert (tmp_path / "x").read_text().startswith("{")


def test_an_unknown_number_is_refused():
    command = [sys.executable, str(SCRIPTS / "reproduce.py"), "--only", "T99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "choose from T1" in done.stderr


def test_what_holds_by_definition_is_no_figure_that_passed(monkeypatch):
    found = SimpleNamespace(shares={"learning_rate": 0.7, "gamma": 0.3, "unroll": 0.0})
    monkeypatch.setattr("pbt_rl.report.importance.importance", lambda _rows, _scores: found)
    assert {row.what: row.passed for row in reproduce.t12()} == {"what is first": True, "sum": None}
