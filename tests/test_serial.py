"""Serial mode: the same seed gives the same bits, with PBT at work."""

import json

import pytest
from safetensors.numpy import load_file

from pbt_rl.cli import parse_train
from pbt_rl.journal import read_journal
from pbt_rl.supervisor import train

TIMES = ("time", "milliseconds", "decision_to_applied_milliseconds")


def serial(out, name, seed):
    """Train a small population; returns its folder."""
    options = {
        "env": "toy/shaped",
        "mode": "serial",
        "out": out,
        "name": name,
        "seed": seed,
        "num-policies": 4,
        "actors": 2,
        "envs-per-unit": 2,
        "train-for-frames": 4000,
        "pbt.period-frames": 500,
        "pbt.start-frames": 500,
        "pbt.min-episodes": 1,
        "learner.batch": 128,
    }
    config, _ = parse_train([f"--{option}={value}" for option, value in options.items()])
    assert train(config) == 0
    return out / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("serial")
    return [serial(out, name, seed) for name, seed in (("a", 5), ("b", 5), ("c", 6))]


def weights(folder):
    (path,) = (folder / "checkpoints").glob("*.safetensors")
    return path.name, path.read_bytes()


def record(folder):
    """The journal after its first event, without times and without what is written by the clock."""
    _, *events = read_journal(folder / "journal.jsonl")
    kept = [event for event in events if event["event"] != "progress"]
    return [{k: v for k, v in event.items() if k not in TIMES} for event in [*kept, events[-2]]]


def objectives(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return [(m["objective"], m["episodes"], m["hypers"], m["shaping"]) for m in summary["members"]]


@pytest.mark.parametrize("part", [weights, record, objectives])
def test_the_seed_decides_everything(runs, part):
    first, again, other = map(part, runs)
    assert first == again
    assert first != other


def test_members_were_replaced_meanwhile(runs):
    """Else the comparisons above say little."""
    events = record(runs[0])
    assert sum(event["event"] == "round" for event in events) >= 4
    assert any(event["event"] == "applied" and event["donor"] is not None for event in events)


def test_weights_are_finite_and_belong_to_the_best(runs):
    best = json.loads((runs[0] / "summary.json").read_text())["best_member"]
    tensors = load_file(runs[0] / "checkpoints" / f"policy_{best:02d}.safetensors")
    assert tensors
    assert all((abs(t) < 1e6).all() for t in tensors.values())
