"""Turns and wake-ups beside a GPU, simulated: which share of its cores' limit a plan reaches.

    python scripts/simulate_turns.py                 # the plans of four machines, for 1, 8 and 40 policies
    python scripts/simulate_turns.py --plan 15,1,12  # actors, units of each, rows of a unit; of 16 cores

Nothing here runs on a GPU. An actor steps its units in turn; a unit that was stepped waits for the sampler, which takes
all that are ready and answers them together. Whoever sleeps wakes late: where every core is busy, by the delays that
were measured on two over-full cores (median 0.08 ms, one in ten 3.5 ms); with a core to spare, by 0.05 ms. A turn costs
what its Python was measured to cost and an assumed forward pass. The limit is all cores stepping environments, always.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pbt_rl.cli.train import parse_train
from pbt_rl.plan import Machine
from pbt_rl.run.resolved import ResolvedRun

STEP = 0.33e-3
"""Seconds of an environment's step."""
TURN, OF_UNIT, FORWARD, OF_ROW = 105e-6, 26e-6, 0.3e-3, 1.0e-6
"""A turn: the host's part, of each unit; the device's part, of each row."""
MOST_UNITS = 64
BUSY = ((0.5, 0.08e-3), (0.75, 1.0e-3), (0.9, 3.5e-3), (1.0, 3.5e-3))
"""Share of the delays that are at most so long, in seconds; between two of them a straight line."""
FREE = 0.05e-3
MACHINES = {
    "16 cores, 1 GPU": (16, 1),
    "64 cores, 8 GPUs": (64, 8),
    "64 cores, 1 GPU": (64, 1),
    "laptop, 8 cores": (8, 1),
}


@dataclass(frozen=True)
class Shape:
    """One learner with its actors. learner: share of a core that it takes itself."""

    cores: float
    actors: int
    units: int
    rows: int
    learner: float = 0.3


def delay(chance: random.Random, *, busy: bool) -> float:
    """Draw how late somebody wakes."""
    if not busy:
        return FREE
    drawn, below, low = chance.random(), 0.0, 0.0
    for share, high in BUSY:
        if drawn <= share:
            return low + (high - low) * (drawn - below) / (share - below)
        below, low = share, high
    return low


def share_of_limit(shape: Shape, seconds: float = 20.0, seed: int = 0) -> float:
    """Return the steps per second over those of all cores stepping environments."""
    chance = random.Random(seed)
    busy = shape.actors + shape.learner > shape.cores
    slower = max(1.0, (shape.actors + shape.learner) / shape.cores)  # they share the cores
    step = shape.rows * STEP * slower
    events: list[tuple[float, int, str, int]] = []
    number = steps = 0
    answered: list[list[int]] = [list(range(shape.units)) for _ in range(shape.actors)]
    asleep, ready = [False] * shape.actors, []
    sampler_busy = False

    def at(when: float, what: str, whom: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, what, whom))

    for actor in range(shape.actors):
        answered[actor].pop(0)
        at(step * (1 + chance.random()), "stepped", actor)
    while events and events[0][0] < seconds:
        now, _, what, whom = heapq.heappop(events)
        if what == "stepped":
            steps += shape.rows
            ready.append(whom)
            if answered[whom]:
                answered[whom].pop()
                at(now + step, "stepped", whom)
            else:
                asleep[whom] = True
            if not sampler_busy:  # it sleeps, and is woken
                sampler_busy = True
                at(now + delay(chance, busy=busy), "turn", 0)
        elif what == "turn":
            taken, ready = ready[:MOST_UNITS], ready[MOST_UNITS:]
            took = TURN + FORWARD + len(taken) * (OF_UNIT + shape.rows * OF_ROW)
            for actor in taken:
                at(now + took, "answered", actor)
            at(now + took, "turn ends", 0)
        elif what == "turn ends":
            sampler_busy = bool(ready)
            if ready:
                at(now, "turn", 0)
        elif what == "answered":
            answered[whom].append(0)
            if asleep[whom]:
                asleep[whom] = False
                at(now + delay(chance, busy=busy), "woken", whom)
        else:
            answered[whom].pop()
            at(now + step, "stepped", whom)
    return steps / seconds / (shape.cores / STEP)


def planned(cores: int, gpus: int, policies: int) -> tuple[Shape, float]:
    """Return the first learner of the plan of Atari's Pong, and how old its rollouts are in shares of the limit."""
    config, _ = parse_train(["--env=atari/pong", f"--num-policies={policies}"])
    run = ResolvedRun.resolve(config, Machine(cores, gpus))
    pack = run.plan.packs[0]
    shape = Shape(
        cores / len(run.plan.packs),
        pack.actors,
        pack.units_per_actor,
        pack.rows,
        0.9 if pack.slots == 1 else 0.3,
    )
    return shape, (pack.units / pack.units_per_batch + 2) / config.learner.max_policy_lag


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", help="actors, units of each, rows of a unit")
    parser.add_argument("--cores", type=float, default=16)
    arguments = parser.parse_args()
    if arguments.plan:
        print(f"{share_of_limit(Shape(arguments.cores, *map(int, arguments.plan.split(',')))):.2f}")
        return
    print(f"{'machine':18}{'policies':>9}{'actors':>8}{'units':>7}{'rows':>6}{'share':>7}{'lag/limit':>10}")
    for name, (cores, gpus) in MACHINES.items():
        for policies in (1, 8, 40):
            shape, lag = planned(cores, gpus, policies)
            share = share_of_limit(shape)
            plan = f"{shape.actors:8}{shape.actors * shape.units:7}{shape.rows:6}"
            print(f"{name:18}{policies:9}{plan}{share:7.2f}{lag:10.2f}")


if __name__ == "__main__":
    main()
