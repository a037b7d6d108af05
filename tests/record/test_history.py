"""Reports of long runs: what they read of a journal stays small, and says the same."""

import tracemalloc
from statistics import mean

import pytest

from pbt_rl.record.history import history_of, read_run
from tests.helpers.journals import PBT, read_events, run_of, write

WINDOW = 100


def recorded(members, rounds):
    """Events of a run whose windows are full, as those of a long run are."""
    events = run_of(members, pbt=PBT, limit=10_000 * (rounds + 1))
    for event in events:
        for member in event.get("report", {}).get("members", ()):
            own = member["objectives"] or [member["member"] / 3]
            member["objectives"] = [own[-1] + i / 7 for i in range(WINDOW)]
    return events


def test_a_journal_is_read_in_less_memory_than_it_has_bytes(tmp_path):
    run = write(tmp_path, recorded(8, 60))
    size = (run / "journal.jsonl").stat().st_size
    tracemalloc.start()
    held = read_run(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del held
    assert size > 1_000_000
    assert peak < size


def test_training_time_excludes_the_start_of_the_processes():
    start, initial, *_ = run_of(2, pbt=PBT, limit=20_000)
    progress = [
        {
            "event": "progress",
            "members": [],
            "time": start["time"] + at,
            "frames": 0,
            "training_seconds": trained,
        }
        for at, trained in ((5.0, 0.0), (15.0, 10.0), (40.0, 20.0))
    ]
    history = history_of("x", read_events([start, initial, *progress]))
    times = {2.0: 0.0, 5.0: 0.0, 9.0: 4.0, 15.0: 10.0, 27.5: 15.0, 43.0: 23.0}
    assert {at: history.trained_until(at) for at in times} == times
    assert history_of("x", read_events([start, initial])).trained_until(3.0) == 3.0, "not recorded"


@pytest.mark.parametrize(("ready", "compared"), [("synchronous", 20), ("asynchronous", WINDOW)])
def test_a_comparison_has_the_mean_of_its_compared_episodes(tmp_path, ready, compared):
    events = recorded(4, 6)
    events[0]["config"] |= {"pbt": events[0]["config"]["pbt"] | {"ready": ready}}
    reports = [event["report"] for event in events if "report" in event]
    for member in (m for report in reports for m in report["members"]):
        member |= {"recent": 20, "episodes": WINDOW}
    read = read_run(write(tmp_path, events))
    wanted = {
        (m["member"], m["frames"]): mean(m["objectives"][-compared:]) for r in reports for m in r["members"]
    }
    found = {(p.member, p.frames): p.objective for p in read.points}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)
    assert all(d.objective in found.values() for d in read.decisions)


def test_the_number_of_episodes_never_falls_at_a_comparison():
    events = run_of(2, pbt=PBT, limit=20_000)
    at = next(i for i, event in enumerate(events) if "report" in event)
    before = [
        {
            "member": member["member"],
            "generation": 0,
            "frames": member["frames"],
            "objective": 1.0,
            "episodes": 10_000 + member["member"],
        }
        for member in events[at]["report"]["members"]
    ]
    progress = {"event": "progress", "members": before, "time": events[at]["time"], "frames": 0}
    history = history_of("x", read_events([*events[:at], progress, *events[at:]]))
    for member, points in history.curves.items():
        assert {p.episodes for p in points} == {10_000 + member}
