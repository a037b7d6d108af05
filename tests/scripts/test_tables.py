"""`scripts/lab/tables.py`: the page holds what the rows say."""

import importlib
import sys

import pytest

from tests.helpers.runs import ROOT


@pytest.fixture(scope="module")
def tables():
    pytest.importorskip("scipy")
    sys.path.insert(0, str(ROOT / "scripts" / "lab"))
    yield importlib.import_module("tables")
    sys.path.remove(str(ROOT / "scripts" / "lab"))


def test_the_pages_hold_the_tables_of_the_rows(tables):
    for page, made in ((tables.PAGE, tables.results_page), (tables.README, tables.readme)):
        text = page.read_text(encoding="utf-8")
        assert made(text) == text, "python scripts/lab/tables.py writes it"


def test_a_changed_figure_is_made_right(tables):
    page = "a\n<!-- table: speed -->\n\n| 9 |\n\n<!-- end -->\nb\n"
    assert tables.with_table(page, "speed", ["| 1 |"]) == page.replace("9", "1")
    assert tables.readme("They make 9 frames/s on two CPU cores") != "They make 9 frames/s on two CPU cores"


def test_differences_have_their_interval_and_their_sign(tables):
    assert tables.gained([1000.0, 3000.0, 2000.0]) == "+2,000 +- 2,484"
    assert tables.gained([1.0]) == "-"
    assert tables.better([1.0, -1.0, 0.0]) == "1 of 3"


def test_intervals_of_known_samples(tables):
    assert tables.half_by_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(
        1.9632, abs=1e-3
    )  # 2.776 * sqrt(2.5 / 5)


def test_the_member_is_picked_by_validation_games(tables):
    assert tables.picked([(3.0, 1.0), (2.0, 9.0)]) == 1.0
    assert tables.picked([(3.0, 1.0), (3.0, 2.0)]) == 1.0  # test games do not choose among equals
