"""Turns, wake-ups and learning beside a GPU, simulated: which share of its cores' limit a plan reaches.

    python scripts/simulate_turns.py                          # the plans of four machines, for 1, 8 and 40 policies
    python scripts/simulate_turns.py --only 64 --batch 8192   # of other batches than the recipe's
    python scripts/simulate_turns.py --plan 15,2,12 --cores 16  # actors, units of each, rows of a unit
    python scripts/simulate_turns.py --ahead                  # if a batch were prepared while the last is learned from

Nothing here runs on a GPU, and what it takes is assumed. An actor steps its units in turn; a unit that was stepped
waits for the sampler, which takes all that are ready, sleeps until the device has computed them, and answers them
together. Whoever sleeps wakes late: where every core is busy, by the delays that were measured on two over-full cores
(median 0.08 ms, one in ten 3.5 ms); with a core to spare, by 0.05 ms. A turn costs what its Python was measured to
cost and an assumed forward pass. Full rollouts wait until a batch of them is learned from, which takes assumed times,
and longer by what the rows of turns take of the device meanwhile; a unit without a free buffer waits, and a rollout
that is too old is discarded.

    share      of the limit, which is all cores stepping environments, always
    learning   the same if learning took all of the time
    lag max    updates since the oldest rollout began that was learned from; 16 are allowed
    learner    share of a core that acting and learning take
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pbt_rl.cli.train import parse_train
from pbt_rl.graphs.turns import MOST_UNITS
from pbt_rl.plan import Machine
from pbt_rl.run.resolved import ResolvedRun

STEP = 0.33e-3
"""Seconds of an environment's step."""
TURN, OF_UNIT, FORWARD, OF_ROW = 105e-6, 26e-6, 0.3e-3, 1.0e-6
"""A turn: the host's part, of each unit; the device's part, of each row."""
PREPARE, UPDATE, OF_SAMPLE, REPLAY = 4e-3, 0.8e-3, 0.8e-6, 20e-6
"""Learning: before each batch; an optimiser step at least, and of each of its samples; the host's part of a step."""
BUSY = ((0.5, 0.08e-3), (0.75, 1.0e-3), (0.9, 3.5e-3), (1.0, 3.5e-3))
"""Share of the delays that are at most so long, in seconds; between two of them a straight line."""
FREE = 0.05e-3


@dataclass(frozen=True)
class Computer:
    """slower: how many times as long the device takes as the assumed one."""

    cores: int
    gpus: int
    slower: float = 1.0


MACHINES = {
    "16 cores, 1 GPU": Computer(16, 1),
    "64 cores, 8 GPUs": Computer(64, 8),
    "64 cores, 1 GPU": Computer(64, 1),
    "laptop, 8 cores": Computer(8, 1, slower=8),
}


@dataclass(frozen=True)
class Shape:
    """One learner with its actors. learner: share of a core that it takes itself; counted if the simulation runs."""

    cores: float
    actors: int
    units: int
    rows: int
    learner: float = 0.3
    rollouts_per_batch: int = 0
    """0: nothing is learned."""
    buffers: int = 0
    """Of rollouts."""
    rollout: int = 32
    updates: int = 16
    """Optimiser steps of a batch."""
    epochs: int = 4
    max_lag: int = 16
    slower: float = 1.0
    ahead: bool = False
    """A batch is prepared while the last one is learned from."""

    @property
    def batch_seconds(self) -> float:
        """Seconds to learn from a batch, if nothing else runs on the device."""
        samples = self.rollouts_per_batch * self.rows * self.rollout * self.epochs
        steps = max(self.updates * UPDATE, samples * OF_SAMPLE * self.slower)
        return max(steps, PREPARE) if self.ahead else steps + PREPARE

    @property
    def learning_limit(self) -> float:
        """Steps per second at which learning would take all of the time."""
        return self.rollouts_per_batch * self.rows * self.rollout / self.batch_seconds


@dataclass
class Result:
    """What was simulated."""

    share: float
    learner: float
    discarded: int = 0
    oldest: int = 0


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


class Simulation:
    """See above. Times are in seconds."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.chance = shape, random.Random(seed)
        self.busy = shape.actors + shape.learner > shape.cores
        slower = max(1.0, (shape.actors + shape.learner) / shape.cores)  # they share the cores
        self.step = shape.rows * STEP * slower
        self.events: list[tuple[float, int, str, int]] = []
        self.numbers = self.steps = self.updates = self.discarded = self.oldest = 0
        self.host = self.acted = 0.0
        """Seconds of a core that the learner took, and of the whole device that turns took."""
        count = shape.actors * shape.units
        self.answered = [list(range(a * shape.units, (a + 1) * shape.units)) for a in range(shape.actors)]
        self.asleep, self.ready, self.starved = [False] * shape.actors, list[int](), list[int]()
        # Rollouts of units do not begin together.
        self.done = [self.chance.randrange(shape.rollout) for _ in range(count)]
        self.began = [0] * count
        self.full: list[int] = []
        self.free = shape.buffers - count
        self.sampling = self.learning = False
        self.batch_began = self.batch_acted = 0.0

    def _at(self, when: float, what: str, whom: int = 0) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (when, self.numbers, what, whom))

    def run(self, seconds: float) -> Result:
        """Simulate so long."""
        for actor, units in enumerate(self.answered):
            self._at(self.step * (1 + self.chance.random()), "stepped", units.pop(0))
            assert actor == (units or [actor * self.shape.units])[0] // self.shape.units
        while self.events[0][0] < seconds:
            now, _, what, whom = heapq.heappop(self.events)
            getattr(self, f"_{what}")(now, whom)
        share = self.steps / seconds / (self.shape.cores / STEP)
        return Result(share, self.host / seconds, self.discarded, self.oldest)

    def _stepped(self, now: float, unit: int) -> None:
        """An actor has stepped a unit, and goes on with another that is answered."""
        self.steps += self.shape.rows
        actor = unit // self.shape.units
        self.ready.append(unit)
        if self.answered[actor]:
            self._at(now + self.step, "stepped", self.answered[actor].pop(0))
        else:
            self.asleep[actor] = True
        self._wake_sampler(now)

    def _wake_sampler(self, now: float) -> None:
        if not self.sampling:
            self.sampling = True
            self._at(now + delay(self.chance, busy=self.busy), "turn")

    def _turn(self, now: float, _: int) -> None:
        """The sampler takes what is ready; a full rollout needs a buffer to go on in."""
        taken: list[int] = []
        waiting, self.ready = self.starved + self.ready, []
        self.starved = []
        for unit in waiting:
            if len(taken) == MOST_UNITS:
                self.ready.append(unit)
            elif self._goes_on(unit):
                taken.append(unit)
            else:
                self.starved.append(unit)
        if taken:
            rows, host = (
                len(taken) * self.shape.rows * OF_ROW * self.shape.slower,
                TURN + len(taken) * OF_UNIT,
            )
            self.acted, self.host = self.acted + rows, self.host + host
            now += host + FORWARD + rows + delay(self.chance, busy=self.busy)
            for unit in taken:
                self._at(now, "answered", unit)
        self._at(now, "turn_ended")
        self._begin_batch(now)

    def _goes_on(self, unit: int) -> bool:
        if not self.shape.rollouts_per_batch:
            return True
        if self.done[unit] == self.shape.rollout:
            if not self.free:
                return False
            self.free -= 1
            self.full.append(self.began[unit])
            self.done[unit] = 0
        if self.done[unit] == 0:
            self.began[unit] = self.updates
        self.done[unit] += 1
        return True

    def _turn_ended(self, now: float, _: int) -> None:
        self.sampling = bool(self.ready)
        if self.ready:
            self._at(now, "turn")

    def _answered(self, now: float, unit: int) -> None:
        actor = unit // self.shape.units
        self.answered[actor].append(unit)
        if self.asleep[actor]:
            self.asleep[actor] = False
            self._at(now + delay(self.chance, busy=self.busy), "woken", actor)

    def _woken(self, now: float, actor: int) -> None:
        self._at(now + self.step, "stepped", self.answered[actor].pop(0))

    def _begin_batch(self, now: float) -> None:
        many = self.shape.rollouts_per_batch
        if many and not self.learning and len(self.full) >= many:
            self.learning = True
            batch, self.full = self.full[:many], self.full[many:]
            ages = [self.updates - began for began in batch]
            self.discarded += sum(age > self.shape.max_lag for age in ages)
            self.oldest = max(self.oldest, *ages)
            self.host += PREPARE + self.shape.updates * REPLAY
            self.batch_began, self.batch_acted = now, self.acted
            self._at(now + self.shape.batch_seconds, "learned")

    def _learned(self, now: float, _: int) -> None:
        """A batch is learned from, unless turns have taken of the device's time."""
        end = self.batch_began + self.shape.batch_seconds + self.acted - self.batch_acted
        if end > now + 1e-6:
            self._at(end, "learned")
            return
        self.learning, self.updates = False, self.updates + 1
        self.free += self.shape.rollouts_per_batch
        if self.starved:
            self._wake_sampler(now)
        self._begin_batch(now)


def simulate(shape: Shape, seconds: float = 20.0, seed: int = 0) -> Result:
    """Simulate twice: the learner's share of a core is what the first one has counted."""
    first = Simulation(shape, seed).run(seconds / 4)
    return Simulation(replace(shape, learner=first.learner), seed).run(seconds)


def planned(machine: Computer, policies: int, *words: str) -> Shape:
    """Return the first learner of the plan of Atari's Pong. words: further options of `pbt-rl train`."""
    config, _ = parse_train(["--env=atari/pong", f"--num-policies={policies}", *words])
    run = ResolvedRun.resolve(config, Machine(machine.cores, machine.gpus))
    pack, learner = run.plan.packs[0], config.learner
    return Shape(
        machine.cores / len(run.plan.packs),
        pack.actors,
        pack.units_per_actor,
        pack.rows,
        rollouts_per_batch=pack.units_per_batch,
        buffers=pack.units + 2 * pack.units_per_batch,
        rollout=learner.rollout,
        updates=learner.minibatches * learner.epochs,
        epochs=learner.epochs,
        max_lag=learner.max_policy_lag,
        slower=machine.slower,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", help="actors, units of each, rows of a unit; without learning")
    parser.add_argument("--cores", type=float, default=16)
    parser.add_argument("--only", default="", help="machines whose names begin so")
    parser.add_argument("--batch", type=int, help="--learner.batch of all plans")
    parser.add_argument("--ahead", action="store_true")
    arguments = parser.parse_args()
    if arguments.plan:
        actors, units, rows = map(int, arguments.plan.split(","))
        shape = Shape(arguments.cores, actors, units, rows)
        print(f"{simulate(shape).share:.2f}")
        return
    words = [f"--learner.batch={arguments.batch}"] if arguments.batch else []
    print(
        f"{'machine':18}{'policies':>9}{'actors':>8}{'units':>7}{'rows':>6}{'batch':>7}"
        f"{'share':>7}{'learning':>10}{'discarded':>11}{'lag max':>9}{'learner':>9}"
    )
    for name, machine in MACHINES.items():
        for policies in (1, 8, 40) if name.startswith(arguments.only) else ():
            shape = replace(planned(machine, policies, *words), ahead=arguments.ahead)
            found = simulate(shape)
            batch = shape.rollouts_per_batch * shape.rows * shape.rollout
            limit = shape.learning_limit / (shape.cores / STEP)
            print(
                f"{name:18}{policies:9}{shape.actors:8}{shape.actors * shape.units:7}{shape.rows:6}{batch:7}"
                f"{found.share:7.2f}{limit:10.2f}{found.discarded:11}{found.oldest:9}{found.learner:9.2f}"
            )


if __name__ == "__main__":
    main()
