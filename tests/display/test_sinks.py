"""Sinks of extras: found, and checked before anything starts."""

from types import SimpleNamespace

from pbt_rl import extras
from pbt_rl.config import Config
from pbt_rl.display import view


def test_what_an_extra_declares_is_checked_and_started(monkeypatch):
    asked = []
    module = SimpleNamespace(check=asked.append, start=lambda *words: words)
    monkeypatch.setattr(
        extras, "discover", lambda _package: [SimpleNamespace(SINKS="place"), SimpleNamespace()]
    )
    monkeypatch.setattr(view, "import_module", {"place": module}.__getitem__)
    config = Config(env="toy/identity")
    view.check_sinks(config)
    assert asked == [config]
    assert view.start_sinks(config, "folder", 3.0, print) == [(config, "folder", 3.0, print)]
