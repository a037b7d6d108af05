"""A run that is continued: serial runs as if they had not stopped, others from their last checkpoint."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbt_rl.cli import resume as resume_command
from pbt_rl.config import Config
from pbt_rl.config.command import parse_train
from pbt_rl.envs.toy import Identity
from pbt_rl.errors import ConfigError
from pbt_rl.record.checkpoints import Checkpoints, SavedFile, read_manifest
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_journal
from pbt_rl.report.audit import audit
from pbt_rl.run.ending import RunEnd
from pbt_rl.run.supervisor import Supervisor
from pbt_rl.run.train import train
from tests.helpers import runs as helper
from tests.helpers.serial import weights

SHARED = ("time", "milliseconds", "decision_to_applied_milliseconds", "milliseconds_until")
SERIAL = {"env": "toy/shaped", "mode": "serial", "num-policies": 4, "actors": 2, "envs-per-vector-env": 2}
SERIAL |= {"pbt.period-frames": 300, "pbt.start-frames": 300, "pbt.min-episodes": 1, "learner.batch": 128}
TIME_SLICES = {"slots": 2, "slot-frames": 300}
PACKS = {"devices": "cpu,cpu", "actors": 3}
MEMORY = {"env": "toy/memory", "model.core": "gru", "learner.returns": "vtrace"}
OBSERVED = {"learner.normalize-observations": True, "learner.packing": "vmap"}
OBSERVED |= {"learner.lr-schedule": "linear"}
STOPPED = {
    "turns": TIME_SLICES,
    "packs": PACKS,
    "gru": MEMORY,
    "vmap": OBSERVED,
    "backtrack": {"pbt.exploit": "backtrack", "num-policies": 5, "slots": 2, "slot-frames": 300},
    "evaluated": {"pbt.evaluate-episodes": 12, "final-episodes": 0},
    "a3c": {"algo": "a3c", "learner.returns": "auto"},
}


def configured(out, name, **more):
    """The config of a serial run."""
    options = SERIAL | {"out": out, "name": name, "train-for-frames": 1800, "figures": False} | more
    return parse_train([f"--{option}={value}" for option, value in options.items()])


def run(out, name, frames, **more):
    """Train to the end, or until a signal comes once every member has these frames; returns the folder."""
    whole = RunEnd.why

    def why(self):
        if frames is not None and self.population.least_frames >= frames:
            self.signal = signal.SIGTERM
        return whole.fget(self)

    RunEnd.why = property(why)
    try:
        assert train(configured(out, name, **more)) == (0 if frames is None else 128 + signal.SIGTERM)
    finally:
        RunEnd.why = whole
    return out / name


def decisions(folder):
    events = read_journal(folder / "journal.jsonl")
    kept = [e for e in events if e["event"] in ("initial", "round", "applied", "matchup")]
    return [{k: v for k, v in event.items() if k not in SHARED} for event in kept]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        *(pytest.param(more, id=name, marks=pytest.mark.long) for name, more in STOPPED.items()),
    ],
)
def test_a_serial_run_goes_on_as_if_it_had_not_stopped(tmp_path, more):
    whole = run(tmp_path, "whole", None, **more)
    for frames in (500, 1000, None):
        parts = run(tmp_path, "parts", frames, **more)
    assert len([e for e in read_journal(parts / "journal.jsonl") if e["event"] == "resume"]) == 2
    assert decisions(parts) == decisions(whole)
    assert weights(parts) == weights(whole)
    assert [e for e in decisions(whole) if e["event"] == "applied"], "no decision was applied"


def test_a_comparison_at_the_end_of_the_budget_waits_for_more_frames(tmp_path):
    times = {"pbt.start-frames": 500, "pbt.period-frames": 500, "learner.lr-schedule": "constant"}
    parts = run(tmp_path, "parts", None, **times, **{"train-for-frames": 500})
    assert not [e for e in decisions(parts) if e["event"] in ("round", "applied")], (
        "no member would train with it"
    )
    run(tmp_path, "parts", None, **times, **{"train-for-frames": 2000})
    whole = run(tmp_path, "whole", None, **times, **{"train-for-frames": 2000})
    assert decisions(parts) == decisions(whole)
    assert weights(parts) == weights(whole)
    assert [e for e in decisions(whole) if e["event"] == "applied"], "no decision was applied"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"pbt.evaluate-episodes": 0}, {"pbt.evaluate-episodes": 4}),
        ({"pbt.evaluate-episodes": 4}, {"pbt.evaluate-episodes": 0}),
        ({"pbt.exploit": "backtrack", "num-policies": 5}, {"pbt.exploit": "truncation", "num-policies": 5}),
    ],
)
def test_a_rule_without_the_saved_state_is_named_by_its_option(tmp_path, before, now):
    run(tmp_path, "x", None, **before, **{"final-episodes": 0})
    with pytest.raises(ConfigError, match=rf"cannot be resumed .*leave out --{next(iter(now))}$"):
        run(tmp_path, "x", None, **now, **{"final-episodes": 0, "train-for-frames": 2400})


class Unsaved(Identity):
    """Its state is none of JSON types, or has numbers for keys, which would come back as texts."""

    def __init__(self, numbered):
        super().__init__()
        self._state = {"rooms": [{1: "red"}]} if numbered else {"position": np.zeros(2)}

    def save_state(self):
        return self._state


@pytest.mark.parametrize("numbered", [False, True])
def test_a_serial_run_is_saved_although_its_environment_gives_no_state(tmp_path, capsys, numbered):
    options = {"env": f"{__name__}:Unsaved", "env-option": f"numbered={numbered}".lower(), "num-policies": 2}
    folder = run(tmp_path, "x", None, **options, **{"actors": 1, "train-for-frames": 300})
    assert capsys.readouterr().out.count("cannot be saved") == 1
    (saved,) = Checkpoints(folder / "checkpoints").all()
    assert saved.state()["units"] == []


def test_the_folder_one_is_in_can_be_named(tmp_path, monkeypatch):
    folder = tmp_path / "x"
    folder.mkdir()
    RunFolder(folder).write_config(Config(env="toy/identity", name="x"))
    resumed = []
    monkeypatch.setattr("pbt_rl.run.train.train", lambda config, **_: resumed.append(config) or 0)
    monkeypatch.chdir(folder)
    assert resume_command.run(["."]) == 0
    assert [(config.name, config.out) for config in resumed] == [("x", tmp_path)]


class Careful(Identity):
    """It takes no action but those of its space."""

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(action)


def test_a_serial_run_that_ended_before_its_first_step_goes_on(tmp_path, monkeypatch):
    env, begin = f"{__name__}:Careful", Supervisor._begin_to_train

    def begin_and_end(self):
        begin(self)
        self._note_signal(signal.SIGTERM, None)

    with monkeypatch.context() as patched:
        patched.setattr(Supervisor, "_begin_to_train", begin_and_end)
        assert train(configured(tmp_path, "x", env=env)) == 128 + signal.SIGTERM
    assert Checkpoints(tmp_path / "x" / "checkpoints").all()[-1].frames == 0
    run(tmp_path, "x", 200, env=env)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """An asynchronous run with members that take turns, killed with all its processes after some checkpoints."""
    cwd = tmp_path_factory.mktemp("killed")
    options = ["--slots=2", "--slot-frames=2000", "--save-every-seconds=0.5", "--devices=cpu"]
    run = helper.train(cwd, "toy/shaped", *helper.ENDLESS, *options)
    at = run.wait_for(helper.PROGRESS)
    while len(list((run.folder / "checkpoints").glob("at_*[0-9]/manifest.json"))) < 2:
        at = run.wait_for(helper.PROGRESS, after=at)
    run.process.kill()
    run.wait()
    return run.cwd


def points(folder):
    """TensorBoard's steps of each member and of the population."""
    accumulators = [EventAccumulator(str(path)) for path in sorted(folder.glob("p*/"))]
    for accumulator in accumulators:
        accumulator.Reload()
    return [[e.step for e in a.Scalars(a.Tags()["scalars"][0])] for a in accumulators]


@pytest.mark.long
def test_a_killed_run_goes_on_with_other_devices_actors_and_budget(killed):
    newest = Checkpoints(killed / "runs" / "x" / "checkpoints").newest(print)
    frames = max(member.frames for member in newest.members())
    options = ("--devices=cpu,cpu", "--actors=3", f"--train-for-frames={frames + 4000}")
    again = helper.start(killed, "resume", "runs/x", *options)
    assert again.wait() == 0, again.err
    (resume,) = again.events("resume")
    assert resume["changed"]["actors"] == [2, 3]
    assert json.loads((again.folder / "config.json").read_text())["devices"] == "cpu,cpu"
    assert again.summary["ended"] == "frames"
    assert all(m["frames"] >= frames + 4000 for m in again.summary["members"])
    generations = {}
    for event in again.events("applied"):
        if event["donor"] is not None or event["member"] not in generations:
            assert event["generation"] >= generations.get(event["member"], 0), "none is applied twice"
            generations[event["member"]] = event["generation"]
    for steps in points(again.folder):
        assert steps == sorted(steps), "none steps back"
    assert audit(again.folder) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seed=1", "--hypers.gamma=0.5"), "--seed: before 0, now 1; --hypers.gamma: before 0.99, now 0.5"),
        (("--resume=no",), r"--resume .*\bno\b"),
        (("--pbt.exploit=truncation", "--pbt.no-enabled"), "--pbt.enabled"),
    ],
)
def test_what_may_not_change_is_said_and_nothing_is_touched(killed, options, said):
    folder = killed / "runs" / "x"

    def written():
        return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}

    before = written()
    with pytest.raises(ConfigError, match=said):
        resume(killed, *options)
    assert written() == before


def resume(cwd, *options):
    arguments = ["--env=toy/shaped", f"--out={cwd / 'runs'}", "--name=x", *helper.ENDLESS, "--slots=2"]
    config = parse_train([*arguments, "--no-figures", *options])
    return train(config)


def test_a_broken_checkpoint_is_passed_over_and_a_run_without_any_whole_one_is_refused(killed, capsys):
    checkpoints = killed / "runs" / "x" / "checkpoints"
    for path in checkpoints.glob("*/state.json"):
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ConfigError, match="damaged"):
        resume(killed)
    assert "state.json" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["checkpoint", "resume"])
def test_a_saved_run_whose_checkpoints_were_removed_is_kept(tmp_path, left):
    folder = run(tmp_path, "x", 300)
    shutil.rmtree(folder / "checkpoints")
    journal = folder / "journal.jsonl"
    written = f'"event": "{left}", "config": {{}}, "changed": {{}}'
    journal.write_text(journal.read_text().replace('"event": "checkpoint"', written))
    before = journal.read_bytes()
    with pytest.raises(ConfigError, match=r"checkpoints .*missing.*--overwrite"):
        train(configured(tmp_path, "x"))
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("record"), "record"),
        (lambda s: s["record"].update(journal="0"), r"record.journal"),
        (lambda s: s.update(resumes=None), "resumes"),
        (lambda s: s.update(learners=[1]), r"learners\[0\]"),
        (lambda s: s.update(units=[0.5]), r"units\[0\]"),
    ],
)
def test_a_state_that_a_stranger_sealed_is_one_clear_error(once, tmp_path, change, said):
    folder = shutil.copytree(once, tmp_path / "x")
    (at,) = (folder / "checkpoints").glob("at_*")
    state = json.loads((at / "state.json").read_text())
    change(state)
    text = json.dumps(state).encode()
    (at / "state.json").write_bytes(text)
    manifest = read_manifest(at / "manifest.json")
    saved = SavedFile("state.json", len(text), hashlib.sha256(text).hexdigest())
    (at / "manifest.json").write_text(dataclasses.replace(manifest, state=saved).to_text())
    with pytest.raises(ConfigError, match=f"state.json .*`.*{said}`"):
        train(configured(tmp_path, "x"))


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A serial run that has ended."""
    return run(tmp_path_factory.mktemp("once"), "x", 300)


def test_what_a_kill_left_half_deleted_goes_if_nothing_is_left_to_do(tmp_path):
    partial = run(tmp_path, "x", None, **{"train-for-frames": 300}) / "checkpoints" / "at_100.partial"
    partial.mkdir()
    run(tmp_path, "x", None, **{"train-for-frames": 300})
    assert not partial.exists()


def test_a_run_ends_although_its_disk_takes_longer_for_a_checkpoint_than_the_time_between_two(
    tmp_path, monkeypatch
):
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (time.sleep(0.05), fsync(fd)))
    folder = run(tmp_path, "slow", None, **{"train-for-frames": 300, "save-every-seconds": 0.01})
    *_, last, end = [e for e in read_journal(folder / "journal.jsonl") if e["event"] in ("checkpoint", "end")]
    assert (last["event"], end["event"]) == ("checkpoint", "end")
    assert Checkpoints(folder / "checkpoints").all()[-1].frames == end["frames"]
