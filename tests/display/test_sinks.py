"""Sinks of extras: found, checked before anything starts, and said to be missing if they are asked for."""

from types import SimpleNamespace

import pytest

from pbt_rl import extras
from pbt_rl.config import Config
from pbt_rl.display import view
from pbt_rl.errors import ConfigError


def test_what_an_extra_declares_is_checked_and_started(monkeypatch):
    asked = []
    module = SimpleNamespace(check=asked.append, start=lambda *words: words)
    monkeypatch.setattr(
        extras, "discover", lambda _package: [SimpleNamespace(SINKS="place"), SimpleNamespace()]
    )
    monkeypatch.setattr(view, "import_module", {"place": module}.__getitem__)
    config = Config(env="toy/identity", track=("csv",))
    view.check_sinks(config)
    assert asked == [config]
    assert view.start_sinks(config, "folder", 3.0, print) == [(config, "folder", 3.0, print)]


def test_trackers_that_are_not_there_are_one_error(monkeypatch):
    monkeypatch.setattr(extras, "discover", lambda _package: [])
    view.check_sinks(Config(env="toy/identity"))
    with pytest.raises(ConfigError, match=r"^--track csv cannot be used: no trackers are installed here$"):
        view.check_sinks(Config(env="toy/identity", track=("csv",)))
