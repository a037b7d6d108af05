"""The kinds of serial runs that `same_runs.py` repeats: their command lines, and what each has to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOY = "toy/shaped"
IMAGES = "toy/treasure?length=10"
BASE = (
    "--mode=serial --devices=cpu --seed=5 --num-policies=4 --actors=2 --envs-per-unit=2 --learner.batch=128 "
    "--learner.threads=1 --learner.precision=float32 --train-for-frames=2400 --pbt.period-frames=400 "
    "--pbt.start-frames=400 --pbt.min-episodes=1 --final-episodes=0 --save-every-seconds=0 --no-figures"
)
"""Of every run. What a kind gives later on the command line wins."""
IMAGE_WORDS = (
    "--model.hidden=32 --model.core-size=16 --train-for-frames=900 --pbt.period-frames=200 "
    "--pbt.start-frames=200 --pbt.replace-gap=0"
)

ANY_LEAD = "--pbt.replace-gap=0 --pbt.replace-errors=0"
"""The worst is replaced by whatever is better, also by luck."""


@dataclass(frozen=True)
class Kind:
    """One kind. commands: words behind `pbt-rl`, in order; the last one makes the run that is compared.

    In the words `OUT` is the folder of the runs. shows: name -> pattern that must be found in the journal.
    crosses: there must be replacements whose donor sat in another pack. dmlab: the run plays on the stand-in of the
    tests for DeepMind Lab.
    """

    commands: tuple[tuple[str, ...], ...]
    shows: Mapping[str, str]
    crosses: bool = False
    dmlab: bool = False


def crossings(events: Sequence[Mapping[str, Any]]) -> int:
    """Count the replacements whose donor sat in another pack."""
    pack: dict[int, int] = {}
    found = 0
    for event in events:
        if event["event"] == "slot" and event["enters"] is not None:
            pack[event["enters"]] = event["pack"]
        for d in event["decisions"] if event["event"] == "round" else ():
            if d["decision"] == "replace" and d["donor"] in pack and d["member"] in pack:
                found += pack[d["donor"]] != pack[d["member"]]
    return found


def decided(name: str) -> str:
    """Return the pattern of the decisions of a name."""
    return f'"decision": "{name}"'


def happened(name: str) -> str:
    """Return the pattern of the events of a name."""
    return f'"event": "{name}"'


COPIES = {"replacements": decided("replace")}
MUTATES = {"mutations": decided("mutate")}
STOPS = {"stopped": decided("stop")}
TURNS = {"changes of parked members": '"parked": true', "slots that changed hands": happened("slot")}


def train(env: str, words: str = "", name: str = "x") -> tuple[str, ...]:
    """Return the words of a training run."""
    return ("train", f"--env={env}", *BASE.split(), f"--name={name}", "--out=OUT", *words.split())


def one(env: str, words: str = "", shows: Mapping[str, str] = COPIES, **more: bool) -> Kind:
    """Return a kind of one run."""
    return Kind((train(env, words),), shows, **more)


CARTPOLE = "gym/CartPole-v1"
VERSUS = "--num-policies=3 --matchup.objective=elo --matchup.scheme=prioritised --model.hidden=32 --pbt.replace-gap=0"
BACKTRACK = "--pbt.exploit=backtrack --slot-frames=300"
REMEMBERED = {"returns to remembered states": r'"donor_generation": \d'}
SEARCH = "--num-policies=6 --train-for-frames=3000 --search.phase-frames=500"

KINDS: Mapping[str, Kind] = {
    "appo": one(
        CARTPOLE,
        "--pbt.exploit=truncation --learner.batch=256 --learner.epochs=2 --learner.minibatches=2 "
        "--train-for-frames=6000 --pbt.period-frames=1000 --pbt.start-frames=1000",
    ),
    "a3c": one(CARTPOLE, "--algo=a3c --pbt.replace-gap=0"),
    "vtrace": one(TOY, "--learner.returns=vtrace"),
    "gru": one("toy/memory", "--model.core=gru --pbt.replace-gap=0"),
    "normalised": one(
        TOY, "--learner.normalize-observations --learner.packing=vmap --learner.lr-schedule=linear"
    ),
    "loop": one(TOY, "--learner.packing=loop --learner.lr-schedule=kl-adaptive"),
    "box": one("gym/Pendulum-v1", "--model.hidden=32 --pbt.exploit=truncation --pbt.replace-gap=0"),
    "masked": one("toy/masked"),
    "hybrid": one("toy/hybrid", "--pbt.replace-gap=0"),
    "shaping": one(TOY, "--pbt.tune shaping.bait learning_rate=1e-4:1e-2"),
    "binary-tournament": one(TOY, "--pbt.exploit=binary-tournament --num-policies=6"),
    "asynchronous": one(TOY, "--pbt.ready=asynchronous --pbt.exploit=sigma-gap --pbt.explore=pairwise"),
    "copy-hypers": one(TOY, "--pbt.copy=hypers --pbt.explore=resample"),
    "backtrack": one(TOY, f"{BACKTRACK} --num-policies=5", COPIES | REMEMBERED),
    "turns": one(TOY, "--slots=2 --slot-frames=300", COPIES | TURNS),
    "packs": one(TOY, "--devices=cpu,cpu", crosses=True),
    "packs-turns-backtrack": one(
        TOY,
        f"{BACKTRACK} --devices=cpu,cpu --num-policies=6 --slots=4",
        REMEMBERED | TURNS,
        crosses=True,
    ),
    "unreal": one(
        IMAGES, f"{IMAGE_WORDS} {ANY_LEAD} --algo=unreal --learner.rollout=10 --pbt.tune entropy_coef"
    ),
    "fun": one(
        IMAGES, f"{IMAGE_WORDS} --algo=fun --learner.rollout=25 --hypers.unroll=25 --pbt.tune intrinsic_coef"
    ),
    "mf-pbt": one(TOY, "--controller=mf-pbt --num-policies=8 --pbt.frequencies 1 3"),
    "pb2": one(TOY, "--pbt.explore=pb2"),
    "hypertrick": one(TOY, f"--controller=hypertrick {SEARCH}", STOPS),
    "asha": one(TOY, f"--controller=asha {SEARCH}", STOPS),
    "hyperband": one(
        TOY,
        "--controller=hyperband --num-policies=8 --train-for-frames=3000 --search.phase-frames=300 --search.resource=9",
        STOPS | {"begun again": decided("restart")},
    ),
    "matchups": one(
        "pettingzoo/tictactoe_v3",
        f"{VERSUS} --train-for-frames=3000",
        COPIES | {"matchups": happened("matchup")},
    ),
    "matchups-resumed": Kind(
        (
            train("pettingzoo/tictactoe_v3", f"{VERSUS} --train-for-frames=1500"),
            ("resume", "OUT/x", "--train-for-frames=3000"),
        ),
        COPIES | {"matchups": happened("matchup"), "resumed": happened("resume")},
    ),
    "evaluations": one(TOY, "--pbt.evaluate-episodes=12", COPIES | {"evaluations": decided("evaluate")}),
    "final": one(
        TOY, f"{ANY_LEAD} --num-policies=2 --final-episodes=2", COPIES | {"final games": happened("final")}
    ),
    "tasks": one(
        "dmlab30",
        "--env-option=episodeLengthSeconds=1 --num-policies=2 --envs-per-unit=1 --train-for-frames=6000 "
        "--pbt.period-frames=3800 --pbt.start-frames=0 --model.encoder=mlp --model.hidden=16 --model.layers=1 "
        "--model.core=none",
        dmlab=True,
    ),
    "atari": one(
        "atari/breakout",
        f"{ANY_LEAD} --num-policies=2 --model.hidden=32 --atari.max-frames-per-episode=400 --train-for-frames=3200 "
        "--pbt.period-frames=800 --pbt.start-frames=800 --learner.batch=64 --learner.rollout=16",
        COPIES,
    ),
    "resumed-turns": Kind(
        (
            train(TOY, f"{BACKTRACK} --devices=cpu,cpu --num-policies=6 --slots=4 --train-for-frames=1500"),
            ("resume", "OUT/x", "--train-for-frames=3000"),
        ),
        REMEMBERED | TURNS | {"resumed": happened("resume")},
        crosses=True,
    ),
    "warm-start": Kind(
        (
            train(TOY, "--train-for-frames=1200", name="source"),
            train(TOY, "--train-for-frames=1200 --init-from=OUT/source"),
        ),
        COPIES,
    ),
    "schedule": Kind(
        (
            train(TOY, "--train-for-frames=2400 --pbt.exploit=impala", name="source"),
            train(TOY, "--controller=schedule --num-policies=2 --schedule.run=OUT/source"),
        ),
        MUTATES,
    ),
}
