"""`--track wandb` with the real package, offline: its files hold the curves that TensorBoard's have."""

import json
import struct

import pytest

from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.display.trackers.outlets import TrackedRun, Trackers
from pbt_rl.record.folder import RunFolder
from tests.helpers.views import member, view

POINTS = ((1.0, 10, 0.5), (2.0, 20, 1.5), (3.0, 30, 4.0))
"""Seconds, frames, objective of member 0."""


def track(folder):
    """A run of three views that are written to TensorBoard and tracked; nothing may be complained about."""
    run, said = RunFolder(folder), []
    run.logs.mkdir()
    options = {"env": "toy/identity", "pbt": {"enabled": True}}
    tracking = Trackers(["wandb"], TrackedRun("demo", run, options, 2, 0.0), said.append)
    board = TensorBoard(run, 2, config_json="{}", warn=said.append, figures=False)
    for seconds, frames, objective in POINTS:
        shown = view(member(0, objective, frames=frames), member(1), seconds=seconds, frames=2 * frames)
        tracking.update(shown)
        board.update(shown)
    board.close()
    tracking.finish("frames", may_wait=True)
    assert said == []


def test_the_files_of_wandb_hold_the_curves(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason='needs wandb: pip install "pbt-rl[wandb]"')
    monkeypatch.setenv("WANDB_MODE", "offline")
    track(tmp_path)
    import wandb

    wandb.teardown()
    found = {}
    for path in (tmp_path / "tracking" / "wandb").glob("offline-run-*/*.wandb"):
        config, rows = wandb_records(path)
        found[path.stem.split("-", 2)[2]] = rows, config
    assert sorted(found) == ["policy_00", "policy_01", "population"]
    rows, config = found["policy_00"]
    assert [(row["global_step"], row["episodes/objective"]) for row in rows] == [(f, o) for _, f, o in POINTS]
    assert config["hypers/gamma"] == 0.99
    rows, config = found["population"]
    assert [row["episodes/objective_best"] for row in rows] == [1.0, 1.5, 4.0]
    assert config["env"] == "toy/identity"


def wandb_records(path):
    """Config and history rows of a file of wandb, which is a log as LevelDB's: a header, then blocks of parts."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, config, rows = path.read_bytes(), 7, b"", {}, []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole = (b"" if kind in (1, 2) else whole) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):  # neither full nor last
            continue
        record = Record.FromString(whole)
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
        for item in (*record.run.config.update, *record.config.update):
            config[item.key or item.nested_key[0]] = json.loads(item.value_json)
    return config, rows
