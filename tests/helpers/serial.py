"""What serial runs under one seed are compared by."""

from pbt_rl.config.command import parse_train
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.journal import read_journal
from pbt_rl.run.train import train

OPTIONS = (
    "--env=toy/shaped",
    "--mode=serial",
    "--devices=cpu,cpu",
    "--seed=5",
    "--num-policies=4",
    "--actors=2",
    "--envs-per-vector-env=2",
    "--train-for-frames=1600",
    "--pbt.period-frames=300",
    "--pbt.start-frames=300",
    "--pbt.min-episodes=1",
    "--learner.batch=128",
    "--learner.threads=1",
    "--no-figures",
)
"""Of a run with two packs."""
SMALL = {
    "env": "toy/treasure?length=10",
    "mode": "serial",
    "num-policies": 3,
    "actors": 1,
    "envs-per-vector-env": 2,
    "model.hidden": 32,
    "model.core-size": 16,
    "train-for-frames": 700,
    "pbt.start-frames": 200,
    "pbt.period-frames": 200,
    "pbt.min-episodes": 1,
    "pbt.replace-gap": 0,
}
"""Of a run on images that replaces members within seconds."""
TIMES = (
    "time",
    "milliseconds",
    "decision_to_applied_milliseconds",
    "milliseconds_until",
    "busy_threads",
    "seconds",
    "seconds_left",
    "training_seconds",
    "frames_per_second",
)
BY_THE_CLOCK = ("progress", "checkpoint", "remark")


def run(out, name, options, **more):
    """Train to the end; return the folder. more: options that win over the others, with _ for -."""
    options = options | {"out": out, "name": name} | {k.replace("_", "-"): v for k, v in more.items()}
    config = parse_train([*(f"--{name}={value}" for name, value in options.items()), "--no-figures"])
    assert train(config) == 0
    return out / name


def weights(folder):
    """Return the bytes of every member in the last checkpoint."""
    newest = Checkpoints(folder / "checkpoints").all()[-1].path
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def record(folder):
    """Return the journal after its first event, without times and without what is written by the clock."""
    _, *events = read_journal(folder / "journal.jsonl")
    kept = [event for event in events if event["event"] not in BY_THE_CLOCK]
    return [{k: v for k, v in event.items() if k not in TIMES} for event in [*kept, events[-2]]]
