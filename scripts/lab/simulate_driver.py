"""Measures the supervisor of a population over many nodes whose hosts are simulated.

Everything of a run is real but the engine: controller, dispatch, store, copies, journal, displays. Hosts answer turns
as those of Ray do: a report per REPORT_SECONDS with episodes of every member, proofs, saved states. The network is
tiny; what copies of a real size need is arithmetic (docs/nodes.md). The time of the simulation itself is left out.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from pbt_rl.config import Config, ModelConfig
from pbt_rl.nodes.engine import Node, Place
from pbt_rl.nodes.messages import Answer, Arrays, Heard, Send, State, Turn
from pbt_rl.nodes.train import OverNodes
from pbt_rl.options import changed
from pbt_rl.record.journal import read_journal
from pbt_rl.run.fleet import Received
from pbt_rl.run.train import train_on
from pbt_rl.wire.messages import (
    Applied,
    Episode,
    FromLearner,
    LearnerReady,
    LearnerReport,
    LearnerSaved,
    Load,
    MemberStats,
    Save,
    Saved,
    SaveLearner,
    SetValues,
)
from pbt_rl.wire.store import Counts

REPORT_SECONDS = 0.5
ENVIRONMENTS = 4
"""Of each member; one of them ends an episode per report."""


@dataclass(eq=False)
class SimulatedHost:
    """One pack that trains at a constant speed."""

    frames_per_second: float
    rng: random.Random
    arrays: Arrays = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    """Member -> generation."""
    episodes: int = 0
    """Of each member so far."""
    began: float = 0.0
    next_report: float = 0.0
    out: list[Heard] = field(default_factory=list)

    def turn(self, turn: Turn) -> Answer | None:
        """Carry out a turn at once."""
        now = time.monotonic()
        if turn.setup is not None:
            plan = turn.setup.resolved.plan.packs[0]
            layout = turn.setup.layout
            self.arrays = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
            self.members = dict.fromkeys(plan.members, 0)
            self.began, self.next_report = now, now + self.rng.random() * REPORT_SECONDS
            self._say(LearnerReady())
            return None
        for order in turn.orders:
            if isinstance(order, Send):
                self._obey(order.message)
        if now >= self.next_report:
            self.next_report = now + REPORT_SECONDS
            self._say(self._report(now - self.began))
        out, self.out = self.out, []
        return Answer(tuple(out), 0.0, 0.0)

    def _say(self, message: FromLearner, state: State | None = None) -> None:
        self.out.append(Heard(Received(0, message), state))

    def _obey(self, message: object) -> None:
        match message:
            case Load(member=int(member)) | SetValues(member=int(member)):
                self.members[member] = message.generation
                self._say(
                    Applied(member, message.donor, message.generation, 0.1, {}, {}, {}, donor_unchanged=True)
                )
            case Save(_, key, entry):
                self._say(Saved(key, entry), State(self.arrays, Counts()))
            case SaveLearner(number):
                self._say(LearnerSaved(number, {}))

    def _report(self, seconds: float) -> LearnerReport:
        frames = int(seconds * self.frames_per_second)
        stats = [
            MemberStats(member, frames, frames, frames // 1000, {"entropy": 1.0, "kl": 0.01}, generation)
            for member, generation in self.members.items()
        ]
        episodes = []
        for member, generation in self.members.items():
            score = self.rng.gauss(member % 17, 3.0)
            place = self.episodes % ENVIRONMENTS
            episodes.append(Episode(member, generation, score, score, score, 100, environment=place))
        self.episodes += 1
        return LearnerReport("cpu", stats, episodes, {"learning": REPORT_SECONDS}, 1, 0)


@dataclass
class SimulatedEngine:
    """See pbt_rl.nodes.engine.Engine. A turn without events takes its patience, as the host of a real one waits."""

    count: int
    frames_per_second: float
    calls: int = 0
    own_seconds: float = 0.0
    """Processor time of the simulation itself."""
    waited_seconds: float = 0.0
    _pending: list[tuple[float, int, SimulatedHost, Turn]] = field(default_factory=list)
    _ended: dict[int, tuple[SimulatedHost, Turn]] = field(default_factory=dict)

    def nodes(self) -> Mapping[str, Node]:
        """See Engine."""
        return {f"node{i:04}": Node(f"node{i:04}", 8.0, 0) for i in range(self.count)}

    def start(self, place: Place) -> SimulatedHost:
        """See Engine."""
        return SimulatedHost(self.frames_per_second, random.Random(place.node))

    def call(self, host: SimulatedHost, turn: Turn) -> int:
        """See Engine."""
        self.calls += 1
        now = time.monotonic()
        idle_until = min(now + turn.patience_seconds, max(now, host.next_report))
        due = now if turn.orders else idle_until
        heapq.heappush(self._pending, (due, self.calls, host, turn))
        return self.calls

    def wait(self, _calls: Collection[int], patience_seconds: float) -> list[int]:
        """See Engine."""
        began = time.monotonic()
        if self._pending:
            due = self._pending[0][0]
            time.sleep(max(0.0, min(due - began, patience_seconds)))
        self.waited_seconds += time.monotonic() - began
        self._ended = {}
        now = time.monotonic()
        while self._pending and self._pending[0][0] <= now:
            _, number, host, turn = heapq.heappop(self._pending)
            self._ended[number] = (host, turn)
        return [*self._ended]

    def result(self, call: int) -> Answer | None:
        """See Engine."""
        began = time.process_time()
        host, turn = self._ended[call]
        answer = host.turn(turn)
        self.own_seconds += time.process_time() - began
        return answer

    def end(self, hosts: Collection[SimulatedHost], patience_seconds: float) -> None:
        """See Engine."""

    def close(self) -> None:
        """See Engine."""


def main() -> None:
    """Run the simulation and print what the supervisor needed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--frames-per-second", type=float, default=1000.0, help="of every member")
    parser.add_argument("--period-frames", type=int, default=20_000, help="between two comparisons")
    given = parser.parse_args()
    engine = SimulatedEngine(given.nodes, given.frames_per_second)
    with tempfile.TemporaryDirectory() as out:
        base = Config(env="toy/shaped", num_policies=given.members, name="simulated", out=Path(out))
        config = replace(
            changed(base, {"nodes": "ray"}),
            train_for_seconds=given.seconds,
            actors=given.nodes,
            units_per_actor=1,
            envs_per_unit=ENVIRONMENTS,
            figures=False,
            model=ModelConfig(hidden=8, layers=1),
            save_every_seconds=0.0,
            pbt=replace(
                Config(env="toy/shaped").pbt,
                start_frames=given.period_frames,
                period_frames=given.period_frames,
                min_episodes=2,
            ),
        )
        began, used = time.monotonic(), time.process_time()
        train_on(OverNodes(engine), config)
        seconds, used = time.monotonic() - began, time.process_time() - used - engine.own_seconds
        path = Path(out) / "simulated" / "journal.jsonl"
        journal, events = path.stat().st_size, read_journal(path)
    load, asleep = 100 * used / seconds, 100 * engine.waited_seconds / seconds
    print(f"{given.members} members on {given.nodes} nodes, {seconds:.0f} s")
    print(f"supervisor: {load:.0f} % of a core, {asleep:.0f} % of the time asleep")
    print(
        f"turns: {engine.calls / seconds:.0f} per second; journal: {journal / seconds / 1000:.1f} kB per second"
    )
    applied = [e["decision_to_applied_milliseconds"] for e in events if e["event"] == "applied"]
    rounds = [e for e in events if e["event"] == "round"]
    print(f"{len(rounds)} comparisons, {len(applied)} changes of members")
    if applied:
        times = [1e-3 * time for time in (median(applied), max(applied))]
        print(f"from a decision until it is applied: {times[0]:.2f} s (median), {times[1]:.2f} s at most")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


if __name__ == "__main__":
    main()
