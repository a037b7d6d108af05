"""Tables of names: ours, and what an installed package adds as entry points."""

import importlib
import sys

import pytest

from pbt_rl import registry
from pbt_rl.registry import EntryPointError, Registry

RULES = {"ours": "json:dumps", "later": "no_such_module_of_ours:X"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with four entry points: one right, one that hides ours, two that cannot be used."""
    info = tmp_path / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    points = "mine = added_rules:MINE\nours = added_rules:MINE\nbroken = added_rules:MISSING\nkind = added_rules:Kind\n"
    (info / "entry_points.txt").write_text("[rules.of.a.test]\n" + points)
    (tmp_path / "added_rules.py").write_text("MINE = 'mine'\nclass Kind: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
    sys.modules.pop("added_rules", None)


def test_nothing_is_imported_before_it_is_looked_up():
    table = Registry("rules.of.a.test", "builtins:str", RULES)
    assert [*table] == ["ours", "later"]
    assert table["ours"] is __import__("json").dumps
    with pytest.raises(ModuleNotFoundError):
        table["later"]
    with pytest.raises(KeyError):
        table["unknown"]
    assert table.get("unknown") is None


def test_another_package_adds_names_and_hides_none_of_ours(package):
    table = Registry("rules.of.a.test", "builtins:str", RULES)
    assert [*table] == ["ours", "later", "broken", "kind", "mine"]
    assert table["mine"] == "mine"
    assert table["ours"] is __import__("json").dumps


def test_what_another_package_cannot_give_is_named_with_its_entry_point_and_passed_over_by_a_walk(package):
    table = Registry("rules.of.a.test", "builtins:str", {})
    with pytest.raises(EntryPointError, match=r"broken = added_rules:MISSING .*rules.of.a.test"):
        table["broken"]
    with pytest.raises(EntryPointError, match=r"builtins:str.* Kind"):
        table["kind"]
    assert dict(table.items()) == {"ours": "mine", "mine": "mine"}
    assert [*table.values()] == ["mine", "mine"]
    assert [*table.unusable] == ["broken", "kind"]
