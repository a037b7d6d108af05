"""`discover` imports the declarations of extras, in order, and nothing else."""

import sys

import pytest

from pbt_rl.extras import discover


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A package with two extras, a folder that is none, and a module."""
    files = {
        "__init__.py": "",
        "zebra/__init__.py": "",
        "zebra/extra.py": "NAME = 'zebra'",
        "ant/__init__.py": "",
        "ant/extra.py": "NAME = 'ant'",
        "plain/__init__.py": "raise AssertionError('imported')",
        "single.py": "raise AssertionError('imported')",
        "no_package/extra.py": "raise AssertionError('imported')",
    }
    for name, text in files.items():
        path = tmp_path / "room_of_extras" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "room_of_extras"
    for name in [name for name in sys.modules if name.startswith("room_of_extras")]:
        del sys.modules[name]


def test_extras_come_in_order_of_name_and_nothing_else_is_imported(room):
    assert [module.NAME for module in discover(room)] == ["ant", "zebra"]


def test_an_extra_that_is_removed_is_not_found(room, tmp_path):
    (tmp_path / room / "ant" / "extra.py").unlink()
    assert [module.NAME for module in discover(room)] == ["zebra"]


def test_an_extra_that_cannot_be_imported_is_no_missing_extra(room, tmp_path):
    (tmp_path / room / "ant" / "extra.py").write_text("import no_such_package_at_all")
    with pytest.raises(ModuleNotFoundError):
        discover(room)
