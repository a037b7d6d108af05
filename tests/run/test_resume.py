"""A run that is continued: serial runs as if they had not stopped, others from their last checkpoint."""

import signal

import pytest

from pbt_rl.cli.train import parse_train
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.journal import read_journal
from pbt_rl.run.supervisor import train

SHARED = ("time", "milliseconds", "decision_to_applied_milliseconds")
SERIAL = {
    "env": "toy/shaped",
    "mode": "serial",
    "num-policies": 4,
    "actors": 2,
    "envs-per-unit": 2,
    "pbt.period-frames": 300,
    "pbt.start-frames": 300,
    "pbt.min-episodes": 1,
    "learner.batch": 128,
}
TURNS = {"slots": 2, "slot-frames": 300}
MEMORY = {"env": "toy/memory", "model.core": "gru", "learner.returns": "vtrace"}
OBSERVED = {
    "learner.normalize-observations": True,
    "learner.packing": "vmap",
    "learner.lr-schedule": "linear",
}
BACKTRACK = {"pbt.exploit": "backtrack", "num-policies": 5, "slots": 2, "slot-frames": 300}


def run(out, name, frames, **more):
    """Train until every member has these frames; returns the folder."""
    options = SERIAL | {"out": out, "name": name, "train-for-frames": 1800} | more
    arguments = [
        f"--{option}" if value is True else f"--{option}={value}" for option, value in options.items()
    ]
    config, _ = parse_train([*arguments, "--no-figures"])
    if frames is None:
        assert train(config) == 0
    else:
        stop_at(config, frames)
    return out / name


def stop_at(config, frames):
    """Train, and end by a signal once every member has these frames."""
    from pbt_rl.run.supervisor import Supervisor

    whole = Supervisor._why_end

    def why_end(self):
        if self._population.least_frames >= frames:
            self._signal = signal.SIGTERM
        return whole(self)

    Supervisor._why_end = why_end
    try:
        assert train(config) == 128 + signal.SIGTERM
    finally:
        Supervisor._why_end = whole


def weights(folder):
    newest = Checkpoints(folder / "checkpoints").all()[-1].path
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def decisions(folder):
    events = read_journal(folder / "journal.jsonl")
    kept = [e for e in events if e["event"] in ("initial", "round", "applied", "matchup")]
    return [{k: v for k, v in event.items() if k not in SHARED} for event in kept]


@pytest.mark.parametrize(
    "more",
    [{}, TURNS, MEMORY, OBSERVED, BACKTRACK, {"algo": "a3c", "learner.returns": "auto"}],
    ids=["plain", "turns", "gru", "vmap", "backtrack", "a3c"],
)
def test_a_serial_run_goes_on_as_if_it_had_not_stopped(tmp_path, more):
    whole = run(tmp_path, "whole", None, **more)
    for frames in (500, 1000, None):
        parts = run(tmp_path, "parts", frames, **more)
    assert len([e for e in read_journal(parts / "journal.jsonl") if e["event"] == "resume"]) == 2
    assert decisions(parts) == decisions(whole)
    assert weights(parts) == weights(whole)
    assert [e for e in decisions(whole) if e["event"] == "applied"], "else the comparison says little"


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    folder = run(tmp_path, "x", 300)
    draft = folder / ".config.json.4711"
    draft.touch()
    run(tmp_path, "x", 400)
    assert not draft.exists()
