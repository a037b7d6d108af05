"""Whole runs: what they leave on disk, PBT across packs, lag in the modes, and what an actor costs."""

import json
import struct

import numpy as np
import pytest
from runs import BUSY, python, train

from pbt_rl.journal import read_journal, replay_decisions
from pbt_rl.pbt.hypers import SHAPING, hyper_table
from pbt_rl.run import Facts, config_from_json
from pbt_rl.topology import Machine
from pbt_rl.trainer import OPTIMIZER_HYPERS


@pytest.fixture(scope="module")
def crossing(tmp_path_factory):
    """A finished run of two packs, async, with many comparisons."""
    folder = tmp_path_factory.mktemp("crossing")
    run = train(
        folder, "toy/shaped", *BUSY, "--devices=cpu,cpu", "--train-for-frames=60000", "--pbt.replace-gap=0.01"
    )
    assert run.wait(110) == 0, run.err
    return run


def replaced(run):
    return [event for event in run.events("applied") if event["donor"] is not None]


def test_members_are_replaced_across_packs_and_within(crossing):
    pairs = {(event["member"] % 2, event["donor"] % 2) for event in replaced(crossing)}
    assert {(0, 1), (1, 0)} & pairs  # members are dealt out in turn: another parity is another pack
    assert crossing.summary["replacements"] == len(replaced(crossing))
    assert "replacement applied in" in crossing.out


def test_every_decision_is_in_force_where_it_acts(crossing):
    """Optimiser, loss and environment were read back: they hold what was decided, in order, exactly."""
    decided = [
        decision
        for event in crossing.events("round")
        for decision in event["decisions"]
        if "values" in decision
    ]
    applied = crossing.events("applied")
    assert len(applied) > 10
    for event in applied:
        decision = next(d for d in decided if d["member"] == event["member"])
        decided.remove(decision)
        assert event["donor"] == decision.get("donor")
        in_force = event["in_optimizer"] | event["in_loss"]
        assert set(event["in_optimizer"]) == set(OPTIMIZER_HYPERS)
        for name, value in decision["values"].items():
            if name.startswith(SHAPING):
                assert event["in_environment"][name.removeprefix(SHAPING)] == value
            else:
                assert in_force.pop(name) == np.float32(value)
        assert in_force == {}
        assert event["donor_unchanged"]
        assert 0 <= event["milliseconds"] <= event["decision_to_applied_milliseconds"]


def test_generations_count_the_changes(crossing):
    last = [0] * 4
    for event in crossing.events("applied"):
        assert event["generation"] == last[event["member"]] + 1
        last[event["member"]] += 1
    at_end = [member["generation"] for member in crossing.summary["members"]]
    assert all(0 <= end - applied <= 1 for end, applied in zip(at_end, last, strict=True))


def test_the_journal_replays_bit_for_bit(crossing):
    events = read_journal(crossing.folder / "journal.jsonl")
    config = config_from_json(json.loads((crossing.folder / "config.json").read_text()))
    assert config_from_json(events[0]["config"]) == config
    facts = Facts.find(config, Machine(2, 0))
    assert sum(event["event"] == "round" for event in events) > 5
    assert replay_decisions(events, facts.controller()) == []


def test_the_summary_says_what_the_run_came_to(crossing):
    summary = crossing.summary
    assert summary.keys() == {
        "frames",
        "steps",
        "seconds",
        "frames_per_second",
        "best_member",
        "members",
        "replacements",
        "replacement_milliseconds",
        "policy_lag",
        "discarded_rollouts",
        "actors_restarted",
        "ended",
    }
    assert summary["ended"] == "frames"
    assert summary["frames"] >= 4 * 8000
    assert summary["steps"] == summary["frames"]
    assert summary["actors_restarted"] == 0
    assert 0 < summary["replacement_milliseconds"]["median"] <= summary["replacement_milliseconds"]["max"]
    assert 0 <= summary["policy_lag"]["mean"] <= summary["policy_lag"]["max"] <= 32
    assert [member["id"] for member in summary["members"]] == [0, 1, 2, 3]
    hypers = set(hyper_table(config_from_json(crossing.events("start")[0]["config"]).hypers))
    for member in summary["members"]:
        assert member.keys() == {
            "id",
            "frames",
            "status",
            "objective",
            "episodes",
            "generation",
            "hypers",
            "shaping",
        }
        assert set(member["hypers"]) == hypers
        assert set(member["shaping"]) == {"bait"}
        assert member["episodes"] > 0


def test_every_member_has_its_files(crossing):
    for member in crossing.summary["members"]:
        name = f"policy_{member['id']:02d}"
        state = json.loads((crossing.folder / f"{name}.json").read_text())
        assert state["hypers"] == member["hypers"]
        assert state["shaping"] == member["shaping"]
        assert records(crossing.folder / name) > 2
    assert records(crossing.folder / "population") > 2
    best = crossing.summary["best_member"]
    (weights,) = (crossing.folder / "checkpoints").glob("*.safetensors")
    assert weights.name == f"policy_{best:02d}.safetensors"


def records(folder):
    """How many whole records lie in a folder's only event file."""
    (path,) = folder.glob("events.out.tfevents.*")
    data, count = path.read_bytes(), 0
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) >= length + 16
        data, count = data[length + 16 :], count + 1
    return count


def test_sync_learns_without_lag(tmp_path):
    run = train(tmp_path, "toy/shaped", *BUSY, "--mode=sync", "--train-for-frames=6000")
    assert run.wait() == 0, run.err
    assert run.summary["policy_lag"] == {"mean": 0.0, "max": 0}
    assert run.summary["replacements"] > 0
    # Only what began under the replaced weights is thrown away: at most each of the 4 units' rollout.
    assert run.summary["discarded_rollouts"] <= 4 * run.summary["replacements"]


def test_a_run_without_pbt_changes_nobody(tmp_path):
    run = train(
        tmp_path, "toy/shaped", *BUSY, "--pbt.enabled", "False", "--train-for-frames=3000", "--algo=a3c"
    )
    assert run.wait() == 0, run.err
    assert run.events("round") == run.events("applied") == []
    first, *others = run.events("initial")[0]["values"]
    assert all(values == first for values in others)


def test_a_budget_of_seconds_ends_the_run(tmp_path):
    run = train(tmp_path, "toy/identity", *BUSY, "--train-for-seconds=4")
    assert run.wait() == 0, run.err
    assert run.summary["ended"] == "seconds"
    assert 4 <= run.summary["seconds"] < 15


def test_an_actor_imports_no_torch(tmp_path):
    out = python(
        "import sys, pbt_rl.actor; print(sorted({'torch', 'tyro', 'rich'} & set(sys.modules)))", tmp_path
    )
    assert out == "[]\n"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_population_learns_cartpole(tmp_path):
    """All four members, within two minutes on two cores that are not busy with anything else."""
    run = train(
        tmp_path, "gym/CartPole-v1", "--num-policies=4", "--pbt.no-enabled", "--train-for-seconds=120"
    )
    assert run.wait(180) == 0, run.err
    objectives = [member["objective"] for member in run.summary["members"]]
    assert min(objectives) > 475, objectives
