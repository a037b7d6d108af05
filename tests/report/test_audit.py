"""What an audit needs of a journal."""

import gc

import pytest

from pbt_rl.controllers.events import Event
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.errors import ConfigError
from pbt_rl.record.journal import journal_events
from pbt_rl.report.audit import audit
from pbt_rl.run.resolved import build_controller
from tests.helpers import journals

CONFIG = journals.Config("toy/simulated", pbt=PbtConfig(period_frames=1000, start_frames=0, min_episodes=1))


def recorded(folder, lost, limit_frames=3000):
    controller = build_controller(CONFIG, journals.TABLE, 0)
    options = {"chunk_frames": 1000, "limit_frames": limit_frames}
    events = journals.simulated(controller, 4, 4, {"pbt": CONFIG.pbt}, **options)
    return journals.write(folder, [*events, {"event": "lost", "time": 0.0, "frames": 0, "counts": lost}])


def test_lost_progress_does_not_matter_and_lost_comparisons_cannot_be_audited(tmp_path, capsys):
    assert audit(recorded(tmp_path, {"progress": 7})) == 0
    with pytest.raises(ConfigError, match=r"3 .*comparisons"):
        audit(recorded(tmp_path, {"progress": 7, "round": 3}))


@pytest.mark.long
def test_events_are_not_kept_as_a_journal_of_weeks_has_gigabytes(tmp_path, monkeypatch, capsys):
    run = recorded(tmp_path, {"progress": 7}, limit_frames=30_000)
    events = []

    def watched(folder):
        for event in journal_events(folder):
            events.append(sum(issubclass(type(one), Event) for one in gc.get_objects()))
            yield event

    monkeypatch.setattr("pbt_rl.report.audit.journal_events", watched)
    assert audit(run) == 0
    assert "29 comparisons" in capsys.readouterr().out
    assert max(events) - events[0] < 10 < len(events)
