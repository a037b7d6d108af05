"""`--track wandb` and `--track mlflow` with the real packages, offline: their files hold the curves."""

import json
import struct

import pytest

from pbt_rl.trackers.base import TrackedRun
from pbt_rl.trackers.outlets import Trackers
from tests.helpers.views import member, view

POINTS = ((1.0, 10, 0.5), (2.0, 20, 1.5), (3.0, 30, 4.0))
"""Seconds, frames, objective of member 0."""


def track(folder, name):
    """Three views through the tracker's own process; nothing may be complained about."""
    said = []
    run = TrackedRun("demo", folder, {"env": "toy/identity", "pbt": {"enabled": True}}, 2, 0.0)
    tracking = Trackers([name], run, folder / "logs", said.append)
    for seconds, frames, objective in POINTS:
        tracking.update(
            view(member(0, objective, frames=frames), member(1), seconds=seconds, frames=2 * frames)
        )
    tracking.finish("frames", patient=True)
    assert said == []


def test_the_files_of_wandb_hold_the_curves(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason='needs wandb: pip install "pbt-rl[wandb]"')
    monkeypatch.setenv("WANDB_MODE", "offline")
    track(tmp_path, "wandb")
    found = {}
    for path in (tmp_path / "tracking" / "wandb").glob("offline-run-*/*.wandb"):
        config, rows = wandb_records(path)
        found[path.stem.split("-", 2)[2]] = rows, config
    assert sorted(found) == ["policy_00", "policy_01", "population"]
    rows, config = found["policy_00"]
    assert [(row["frames"], row["episodes/objective"]) for row in rows] == [(f, o) for _, f, o in POINTS]
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
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return config, rows


def test_the_files_of_mlflow_hold_the_curves_and_a_run_goes_on_there(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason='needs mlflow: pip install "pbt-rl[mlflow]"')
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    track(tmp_path, "mlflow")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("pbt_rl").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert sorted(runs) == ["demo/policy_00", "demo/policy_01", "demo/population"]
    curve = client.get_metric_history(runs["demo/policy_00"].info.run_id, "episodes/objective")
    assert [(point.step, point.value) for point in curve] == [(f, o) for _, f, o in POINTS]
    assert runs["demo/policy_00"].data.tags["mlflow.parentRunId"] == runs["demo/population"].info.run_id
    assert runs["demo/policy_00"].data.params["hypers/gamma"] == "0.99"
    assert runs["demo/population"].data.params["pbt.enabled"] == "True"
    assert runs["demo/population"].info.status == "FINISHED"

    track(tmp_path, "mlflow")
    assert len(client.search_runs([experiment])) == 3
    assert len(client.get_metric_history(runs["demo/policy_00"].info.run_id, "episodes/objective")) == 6
