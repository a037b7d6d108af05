"""`scripts/lab/tables.py`: the tables of the pages match the rows."""

import importlib
import re
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
        assert made(text) == text, "run python scripts/lab/tables.py"


def test_a_changed_figure_is_made_right(tables):
    page = "a\n<!-- table: speed -->\n\n| 9 |\n\n<!-- end -->\nb\n"
    assert tables.with_table(page, "speed", ["| 1 |"]) == page.replace("9", "1")
    readme = tables.README.read_text(encoding="utf-8")
    assert tables.readme(re.sub("takes about [0-9]+ hours", "takes about 0 hours", readme)) == readme
    with pytest.raises(ValueError, match="takes about"):
        tables.readme(readme.replace("takes about", "needs"))


def test_differences_have_their_interval_and_their_sign(tables):
    assert tables.gained([1000.0, 3000.0, 2000.0]) == "+2,000 +- 2,484"
    assert tables.gained([1.0]) == "-"
    assert tables.better([1.0, -1.0, 0.0]) == "1 of 3"


def test_intervals_of_known_samples(tables):
    assert tables.half_by_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(
        1.9632, abs=1e-3
    )  # 2.776 * sqrt(2.5 / 5)


def test_p_values_are_pooled_and_corrected(tables):
    assert tables.p_by_t([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.00662, abs=1e-5)  # t = 3 / sqrt(0.5)
    assert [tables.two_sided(0.01), tables.two_sided(0.99)] == pytest.approx([0.02, 0.02])
    assert tables.stouffer([0.025] * 4) == pytest.approx(2 * 1.95996, abs=1e-4)
    assert tables.holm([0.01, 0.2, 0.7]) == pytest.approx(0.06)


def test_the_member_is_picked_by_validation_games(tables):
    assert tables.picked([(3.0, 1.0), (2.0, 9.0)]) == 1.0
    assert tables.picked([(3.0, 1.0), (3.0, 2.0)]) == 1.0  # test games do not choose among equals
