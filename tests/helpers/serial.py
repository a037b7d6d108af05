"""What serial runs under one seed are compared by."""

from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.journal import read_journal

OPTIONS = (
    "--env=toy/shaped",
    "--mode=serial",
    "--devices=cpu,cpu",
    "--seed=5",
    "--num-policies=4",
    "--actors=2",
    "--envs-per-unit=2",
    "--train-for-frames=1600",
    "--pbt.period-frames=300",
    "--pbt.start-frames=300",
    "--pbt.min-episodes=1",
    "--learner.batch=128",
    "--learner.threads=1",
    "--no-figures",
)
"""Of a run with two packs."""
TIMES = ("time", "milliseconds", "decision_to_applied_milliseconds", "busy_threads")
BY_THE_CLOCK = ("progress", "checkpoint")


def weights(folder):
    """Return the bytes of every member in the last checkpoint."""
    newest = Checkpoints(folder / "checkpoints").all()[-1].path
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def record(folder):
    """Return the journal after its first event, without times and without what is written by the clock."""
    _, *events = read_journal(folder / "journal.jsonl")
    kept = [event for event in events if event["event"] not in BY_THE_CLOCK]
    return [{k: v for k, v in event.items() if k not in TIMES} for event in [*kept, events[-2]]]
