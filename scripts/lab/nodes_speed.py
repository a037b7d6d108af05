"""Compares the speed of one pack over a cluster of Ray with that on this machine alone, in windows that take turns.

    make .venv-nodes/.ready && PYTHONPATH=. .venv-nodes/bin/python scripts/lab/nodes_speed.py

Ray's own processes run on the same cores. A window's speed leaves its first 10 s out; start is the time from the
command until the first frame. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from pbt_rl.nodes.messages import Answer, Turn
from pbt_rl.record.journal import read_journal

ROOT = Path(__file__).resolve().parents[2]


def window(env: str, seconds: float, extra: list[str]) -> tuple[float, float]:
    """Train for some seconds; return (frames per second, seconds until the first frames)."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "speed"
        command = [
            *(sys.executable, "-m", "pbt_rl", "train", f"--env={env}", f"--out={out}", "--name=speed"),
            *("--num-policies=4", "--devices=cpu", "--actors=1", "--no-figures"),
            *("--learner.threads=1", "--learner.packing=loop", "--pbt.start-frames=100000000"),
            *(f"--train-for-seconds={seconds}", "--save-every-seconds=0", *extra),
        ]
        began = time.time()
        subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        events = [event for event in read_journal(folder / "journal.jsonl") if event["event"] == "progress"]
    counted = [(event["time"], sum(member["frames"] for member in event["members"])) for event in events]
    trained = [one for one in counted if one[1]][:-1]  # the last one comes after saving
    (first, before), *_, (last, after) = trained
    rate = (after - before) / (last - first)
    return rate, first - began - before / rate


class IdleHost:
    """Answers turns at once."""

    def turn(self, _turn: Turn) -> Answer:
        """See PackHost."""
        return Answer((), 0.0, 0.0)


def turn_cost(hosts: int, seconds: float) -> tuple[float, float]:
    """Exchange empty turns with hosts as fast as possible; return (turns per second, processor seconds per turn)."""
    import ray  # noqa: PLC0415 - as the next one

    from pbt_rl.nodes.ray_engine import RayEngine  # noqa: PLC0415 - an extra

    engine = RayEngine(None)
    idle = ray.remote(num_cpus=0)(IdleHost)
    calls = {engine.call(host, Turn(0)): host for host in [idle.remote() for _ in range(hosts)]}
    for call in calls:
        ray.wait([call])
    began, used, done = time.monotonic(), time.process_time(), 0
    while time.monotonic() - began < seconds:
        for call in engine.wait(calls, 0.1):
            engine.result(call)
            host = calls.pop(call)
            calls[engine.call(host, Turn(0))] = host
            done += 1
    rate, cost = done / (time.monotonic() - began), (time.process_time() - used) / done
    engine.close()
    return rate, cost


def main() -> None:
    """Print the speed of every window and the ratio of each pair, or the cost of a turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="atari/pong")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=33.0)
    parser.add_argument("--turns", type=int, default=0, help="measure turns with this many hosts instead")
    given = parser.parse_args()
    if given.turns:
        rate, cost = turn_cost(given.turns, 10.0)
        print(
            f"{rate:,.0f} turns per second with {given.turns} hosts; {cost * 1e3:.2f} ms of the supervisor each"
        )
        return
    ratios, starts = [], []
    for number in range(given.rounds):
        kinds = {"here": [], "over Ray": ["--nodes=ray"]}
        order = [*kinds] if number % 2 == 0 else [*reversed(kinds)]
        found = {kind: window(given.env, given.seconds, kinds[kind]) for kind in order}
        ratios.append(found["over Ray"][0] / found["here"][0])
        starts.append(found["over Ray"][1] - found["here"][1])
        speeds = ", ".join(
            f"{kind} {rate:,.0f} frames/s, start {begun:.1f} s" for kind, (rate, begun) in found.items()
        )
        print(f"{speeds}: ratio {ratios[-1]:.3f}", flush=True)
    print(f"ratio: median {median(ratios):.3f}; Ray starts {median(starts):.1f} s later")


if __name__ == "__main__":
    main()
