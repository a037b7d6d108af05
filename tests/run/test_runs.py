"""Whole runs: what they leave on disk, PBT across packs, lag in the modes, and what an actor costs."""

import json
import re
import struct

import numpy as np
import pytest

from pbt_rl.controllers.decide import audit_decisions
from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.plan import Machine
from pbt_rl.record.folder import config_from_json
from pbt_rl.run.resolved import ResolvedRun
from tests.helpers.journals import read_events
from tests.helpers.runs import BUSY, train

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def crossing(tmp_path_factory):
    """A finished run of two packs, async, with many comparisons."""
    folder = tmp_path_factory.mktemp("crossing")
    options = ["--devices=cpu,cpu", "--train-for-frames=60000", "--pbt.replace-gap=0.01", "--figures"]
    run = train(folder, "toy/shaped", *BUSY, *options)
    assert run.wait() == 0, run.err
    return run


def test_members_are_replaced_across_packs_and_within(crossing):
    replaced = [event for event in crossing.events("applied") if event["donor"] is not None]
    pairs = {(event["member"] % 2, event["donor"] % 2) for event in replaced}
    assert {(0, 1), (1, 0)} & pairs  # members are dealt out in turn: another parity is another pack
    assert crossing.summary["replacements"] == len(replaced)
    assert re.search(r"^\d <- \d   ", crossing.out, re.MULTILINE)


def test_every_decision_is_in_force_where_it_acts(crossing):
    """Optimiser, loss and environment were read back: they hold what was decided, in order, exactly."""
    decided = [d for event in crossing.events("round") for d in event["decisions"] if "values" in d]
    applied = crossing.events("applied")
    assert len(applied) > 10
    for event in applied:
        decision = next(d for d in decided if d["member"] == event["member"])
        decided.remove(decision)
        assert event["donor"] == decision.get("donor")
        in_force = event["in_optimizer"] | event["in_loss"]
        assert set(event["in_optimizer"]) == {"learning_rate", "max_grad_norm", "adam_beta1", "adam_beta2"}
        for name, value in decision["values"].items():
            if name.startswith(SHAPING):
                assert event["in_environment"][name.removeprefix(SHAPING)] == value
            else:
                assert in_force.pop(name) == np.float32(value)
        assert in_force == {}
        assert event["donor_unchanged"]
        assert 0 <= event["milliseconds"] <= event["decision_to_applied_milliseconds"]
        until = event["milliseconds_until"]
        assert [*until] == ["sent", "received", "begun", "written", "proved", "answered"]
        assert [0, *until.values()] == sorted([0, *until.values()])
        assert until["answered"] == event["decision_to_applied_milliseconds"]
        assert "clock" not in event


def test_generations_count_the_changes(crossing):
    last = [0] * 4
    for event in crossing.events("applied"):
        assert event["generation"] == last[event["member"]] + 1
        last[event["member"]] += 1
    at_end = [member["generation"] for member in crossing.summary["members"]]
    assert all(0 <= end - applied <= 1 for end, applied in zip(at_end, last, strict=True))
    assert len(crossing.events("round")) > 5
    assert replays(crossing)


def test_the_summary_says_what_the_run_came_to(crossing):
    summary = crossing.summary
    counts = "frames saved_at_frames steps seconds frames_per_second replacements actors_restarted learners_replaced"
    others = (
        "best_member members replacement_milliseconds policy_lag discarded_rollouts discarded_share warnings "
    )
    others += "ended training_seconds random_play"
    assert summary.keys() == {*counts.split(), *others.split()}
    assert summary["ended"] == "frames"
    assert summary["frames"] >= 4 * 8000
    assert summary["steps"] == summary["frames"]
    assert summary["actors_restarted"] == 0
    assert 0 < summary["replacement_milliseconds"]["median"] <= summary["replacement_milliseconds"]["max"]
    assert 0 <= summary["policy_lag"]["mean"] <= summary["policy_lag"]["max"] <= 32
    assert [member["id"] for member in summary["members"]] == [0, 1, 2, 3]
    hypers = {name for name in crossing.events("initial")[0]["values"][0] if not name.startswith(SHAPING)}
    assert {"learning_rate", "gae_lambda"} <= hypers
    assert not hypers & {"rmsprop_alpha", "pixel_control_coef"}, "appo reads none of them"
    for member in summary["members"]:
        names = "id frames status objective episodes generation hypers shaping"
        assert {*member} == {*names.split()}
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
        assert any((crossing.folder / "checkpoints").glob(f"at_*/{name}.safetensors"))
    assert records(crossing.folder / "population") > 2
    (events,) = (crossing.folder / "population").iterdir()
    assert b"\x89PNG" in events.read_bytes(), "the population's figures"


def records(folder):
    """How many whole records lie in a folder's only event file."""
    (path,) = folder.glob("events.out.tfevents.*")
    data, count = path.read_bytes(), 0
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) >= length + 16
        data, count = data[length + 16 :], count + 1
    return count


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A finished HyperTrick: eight configurations on two slots."""
    options = (
        "--controller=hypertrick --num-policies=8 --slots=2 --search.phases=3 --train-for-frames=6000"
        " --search.eviction-rate=0.5"
    )
    run = train(tmp_path_factory.mktemp("search"), "toy/shaped", *options.split())
    assert run.wait() == 0, run.err
    return run


def agents_of(run):
    """(pack, slot) -> who held it, one after the other; what the events say must fit together."""
    held = {}
    for event in run.events("slot"):
        members = held.setdefault((event["pack"], event["slot"]), [])
        assert event["leaves"] == (members[-1] if members else None)
        members.append(event["enters"])
        present = [ids[-1] for ids in held.values() if ids[-1] is not None]
        assert len(set(present)) == len(present), "nobody sits twice"
    return held


def replays(run):
    """The recorded rounds, shown to a fresh controller."""
    config = config_from_json(json.loads((run.folder / "config.json").read_text()))
    controller = ResolvedRun.resolve(config, Machine(2, 0)).controller()
    return audit_decisions(read_events(run.journal), controller) == []


def test_a_search_gives_each_free_place_to_the_next_and_ends_by_itself(search):
    held = agents_of(search)
    assert sorted(m for ids in held.values() for m in ids if m is not None) == list(range(8))
    decided = [d for event in search.events("round") for d in event["decisions"]]
    assert [d["decision"] for d in decided[:8]] == ["continue"] * 8
    assert sorted(d["member"] for d in decided if d["decision"] == "stop") == list(range(8))
    assert search.summary["ended"] == "all members are done"
    assert {m["status"] for m in search.summary["members"]} == {"stopped"}
    frames = [m["frames"] for m in search.summary["members"]]
    assert min(frames) < 4000, "some were evicted"
    assert 6000 <= max(frames) < 12000, "some completed"
    best = search.summary["best_member"]
    assert any((search.folder / "checkpoints").glob(f"at_*/policy_{best:02d}.safetensors"))
    assert replays(search)


def test_the_journal_says_how_far_everyone_is(search):
    *_, last = search.events("progress")
    assert [m["member"] for m in last["members"]] == list(range(8))
    for recorded, member in zip(last["members"], search.summary["members"], strict=True):
        assert recorded["complete"]
        for name in ("generation", "frames", "objective", "episodes"):
            assert recorded[name] == member[name]


def test_sync_learns_without_lag(tmp_path):
    run = train(tmp_path, "toy/shaped", *BUSY, "--mode=sync", "--train-for-frames=24000")
    assert run.wait() == 0, run.err
    assert run.summary["policy_lag"] == {"mean": 0.0, "max": 0}
    assert run.summary["replacements"] > 0
    # Only what began under the replaced weights is thrown away: at most each of the 4 vector envs' rollout.
    assert run.summary["discarded_rollouts"] <= 4 * run.summary["replacements"]


def test_a_run_without_pbt_changes_nobody(tmp_path):
    options = ("--pbt.no-enabled", "--train-for-frames=3000", "--algo=a3c")
    run = train(tmp_path, "toy/shaped", *BUSY, *options)
    assert run.wait() == 0, run.err
    assert run.events("round") == run.events("applied") == []
    first, *others = run.events("initial")[0]["values"]
    assert all(values == first for values in others)


def test_a_budget_of_seconds_ends_the_run(tmp_path):
    run = train(tmp_path, "toy/identity", "--num-policies=2", "--actors=2", "--train-for-seconds=3")
    assert run.wait() == 0, run.err
    assert run.summary["ended"] == "seconds"
    assert 3 <= run.summary["seconds"] < 14
