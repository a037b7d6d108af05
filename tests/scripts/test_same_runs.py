"""`scripts/lab/same_runs.py`: what counts as a difference between two runs, and what as a note."""

import copy
import json
import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "lab"))

import same_runs  # noqa: E402

REPLACE = {"decision": "replace", "member": 0, "donor": 1, "values": {"gamma": 0.9}, "reason": "0 < 1"}
RUN = {
    "events": [
        {"event": "slot", "pack": 0, "slot": 0, "enters": 0},
        {"event": "slot", "pack": 1, "slot": 0, "enters": 1},
        {
            "event": "round",
            "time": 1.0,
            "report": {"members": [{"member": 0, "objectives": [1.0, float("nan")], "best": None}]},
            "decisions": [REPLACE, {"decision": "mutate", "member": 1, "values": {"shaping.bait": 1.0}}],
        },
        {"event": "applied", "member": 0, "parked": True, "milliseconds": 0.1},
    ],
    "summary": {"best_member": 1, "seconds": 5.0},
    "checkpoint": "at_100",
    "tensors": {
        "policy_00": {"net.w": ["F32", [1], "aa"]},
        "remembered_01_2": {"net.w": ["F32", [1], "bb"]},
    },
}


def compared(change):
    """Compare the run with a changed copy: the places that differ, and the notes."""
    other = copy.deepcopy(RUN)
    change(other)
    sides = (copy.deepcopy(RUN), other)
    for run in sides:
        run["events"], run["summary"] = same_runs.strip(run["events"]), same_runs.strip(run["summary"])
    found = same_runs.compare_runs(*sides)
    notes = [line.removeprefix(same_runs.NOTE) for line in found if line.startswith(same_runs.NOTE)]
    return [line.partition(":")[0] for line in found if not line.startswith(same_runs.NOTE)], notes


def decision(run):
    return run["events"][2]["decisions"][0]


def member(run):
    return run["events"][2]["report"]["members"][0]


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        (lambda r: None, []),
        (lambda r: r["events"][2].update(time=2.0), []),
        (lambda r: member(r).update(objectives=[1, "NaN"]), []),
        (lambda r: decision(r).update(reason="worse"), ["round[].decisions[].reason in other words"]),
        (lambda r: member(r).pop("best"), ["round[].report.members[].best only in A"]),
        (lambda r: r["events"].append({"event": "new"}), ["events new only in B"]),
        (lambda r: r["tensors"].update(state_1_2=r["tensors"].pop("remembered_01_2")), []),
    ],
)
def test_no_difference(change, notes):
    assert compared(change) == ([], notes)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda r: decision(r).update(donor=2), "round[].decisions[].donor"),
        (lambda r: decision(r)["values"].update(gamma=0.9 + 1e-16), "round[].decisions[].values.gamma"),
        (lambda r: r["events"][2]["decisions"].reverse(), "round[].decisions[].decision"),
        (lambda r: r["events"].reverse(), "order of events"),
        (lambda r: r.update(checkpoint="at_99"), "last checkpoint"),
        (lambda r: r["tensors"]["policy_00"]["net.w"].__setitem__(2, "ab"), "checkpoint.policy_00.net.w[]"),
        (lambda r: r["tensors"]["policy_00"].clear(), "checkpoint.policy_00.net.w only in A"),
        (lambda r: r["tensors"].pop("remembered_01_2"), "checkpoint.remembered, number"),
    ],
)
def test_a_difference_is_named(change, place):
    assert place in compared(change)[0]


def test_a_run_that_shows_nothing_fails(tmp_path, monkeypatch, capsys):
    """Else equal runs would say little."""
    monkeypatch.setattr(same_runs, "run", lambda *_: RUN | {"events": same_runs.strip(RUN["events"])})
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    words = [str(tmp_path), str(tmp_path), "--out", str(tmp_path)]
    assert same_runs.main([*words, "--kinds", "packs"]) == 0
    assert same_runs.main([*words, "--kinds", "hypertrick"]) == 1
    assert "SHOWS NO stopped" in capsys.readouterr().out


def test_tensors_are_read_by_their_bits(tmp_path):
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}}
    ).encode()
    hashes = []
    for number in (0.0, -0.0):
        file = tmp_path / "x.safetensors"
        file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", number))
        hashes.append(same_runs.read_tensors(file)["a"])
    assert hashes[0][:2] == ["F32", [1]]
    assert hashes[0] != hashes[1]
