"""Takes nodes away from a run over a cluster at random moments, and checks what its members go on from.

    make test-nodes && PYTHONPATH=. .venv-nodes/bin/python scripts/lab/nodes_storm.py --losses 20

The cluster is one of Ray on this machine: three workers for two packs. One worker after the other is ended without
warning, and another one is added. After each loss of a pack: the weights of its members, as the new learner has them
before it trains, are bit for bit those of the copies that they were restored from; the run goes on. At the end it says
how old the copies were and how much training was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from pbt_rl.actors.messages import LearnerReady, Load, Save, Saved
from pbt_rl.actors.store import StatePool
from pbt_rl.config import Config, LearnerConfig
from pbt_rl.nodes.fleet import NodeFleet
from pbt_rl.nodes.messages import Send
from pbt_rl.nodes.train import OverNodes, connected
from pbt_rl.options import changed
from pbt_rl.record.journal import read_journal
from pbt_rl.run.fleet import Event, LearnerLost, Received
from pbt_rl.run.memory import Matchups, Start
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.train import train_on

STORE_BYTES = 100_000_000
PATIENCE_SECONDS = 300.0
FIRST_ENTRY = 10_000
"""Of those that are for the comparison: the run's own have lower numbers."""
SLACK_SECONDS = 2.0
"""A round of copies waits for decisions and for turns."""


class CheckedFleet(NodeFleet):
    """Has every learner that replaces another one save its members before it trains, and compares their bits.

    Members are saved one after the other. What has trained by then says nothing; the first batch is so large that this
    takes seconds.
    """

    checked = late = lost = ready = 0
    wrong: tuple[str, ...] = ()
    _expected: Mapping[int, tuple[tuple[Load, Mapping[str, Any]], ...]] = {}
    """Pack -> members that are awaited, in order, with their arrays."""

    @property
    def nodes_in_use(self) -> set[str]:
        """Ids of the nodes that packs run on."""
        return {station.place.node for station in self._stations if station.place is not None}

    def replace_learner(self, pack: int, start: Start) -> None:
        """See NodeFleet."""
        super().replace_learner(pack, start)
        loads = [load for load in start.slots[pack] if load is not None and load.entry is not None]
        arrays = [self._pool.read(load.entry) for load in loads if load.entry is not None]
        self._expected = {**self._expected, pack: tuple(zip(loads, arrays, strict=True))}
        self._save_next(pack)

    def _save_next(self, pack: int) -> None:
        if self._expected[pack]:
            member = self._expected[pack][0][0].member
            assert member is not None
            entry = FIRST_ENTRY + pack
            self._pool.grow(entry + 1)
            self._stations[pack].orders.append(Send(Save(member, -1, entry)))

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See NodeFleet. What was saved for the comparison concerns nobody else."""
        for event in super().events(patience_seconds):
            message = event.message if isinstance(event, Received) else None
            if isinstance(message, Saved) and message.key < 0:
                assert isinstance(event, Received)
                (load, arrays), *rest = self._expected[event.pack]
                self._expected = {**self._expected, event.pack: tuple(rest)}
                self._compare(message.entry, load, arrays)
                self._save_next(event.pack)
                continue
            yield event
            self.lost += isinstance(event, LearnerLost)
            self.ready += isinstance(message, LearnerReady)

    def _compare(self, entry: int, load: Load, expected: Mapping[str, Any]) -> None:
        if self._pool.counts(entry).updates != load.counts.updates:
            self.late += 1
            return
        self.checked += 1
        arrays = self._pool.read(entry)
        same = arrays.keys() == expected.keys() and all(
            arrays[name].tobytes() == expected[name].tobytes() for name in arrays
        )
        if not same:
            self.wrong += (f"member {load.member} is not as it was copied",)


class Checked(OverNodes):
    """A cluster whose fleets are checked."""

    fleets: list[CheckedFleet]

    def fleet(self, resolved: ResolvedRun, start: Start, matchups: Matchups, pool: StatePool) -> CheckedFleet:
        """See OverNodes."""
        made = CheckedFleet(self.engine, resolved, start, matchups, pool)
        FLEETS.append(made)
        return made


FLEETS: list[CheckedFleet] = []


def serve_cluster(requests: Connection[str, Any]) -> None:
    """Hold a cluster, and add or end workers as is asked, until the other end is closed. A process of its own.

    Ray installs handlers of signals whenever a node starts, so nodes cannot be added in a thread of the run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - reads the environment

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    requests.send(cluster.address)
    workers: dict[str, Any] = {}
    with contextlib.suppress(EOFError):
        while True:
            request = requests.recv()
            if request:
                cluster.remove_node(workers.pop(request), allow_graceful=False)
                requests.send("")
            else:
                worker = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
                workers[worker.node_id] = worker
                requests.send(worker.node_id)
    cluster.shutdown()


class Cluster:
    """A cluster in a process of its own."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._requests, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve_cluster, args=(theirs,))
        self._process.start()
        theirs.close()
        self.address: str = self._requests.recv()

    def add(self) -> str:
        """Add a worker; return its id."""
        return self._ask("")

    def end(self, worker: str) -> None:
        """End a worker without warning."""
        self._ask(worker)

    def _ask(self, request: str) -> str:
        self._requests.send(request)
        answer: str = self._requests.recv()
        return answer

    def close(self) -> None:
        """End the cluster."""
        self._requests.close()
        self._process.join()


class Storm(threading.Thread):
    """Takes nodes away until there were enough losses, and ends the run then."""

    def __init__(self, cluster: Cluster, losses: int, seconds: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._losses, self._rng = cluster, losses, random.Random(seed)
        self._deadline = time.monotonic() + seconds
        self._workers = [cluster.add() for _ in range(3)]
        self.problem = ""
        self.times: list[tuple[float, float]] = []
        """Seconds until each loss was noticed, and until the pack went on."""
        self.ended: list[float] = []
        """`time.time()` when each worker was ended."""

    def run(self) -> None:
        """See Thread."""
        try:
            self._wait(lambda: bool(FLEETS) and FLEETS[0].ready >= 2, "nothing started")
            fleet = FLEETS[0]
            while fleet.lost < self._losses and time.monotonic() < self._deadline:
                time.sleep(self._rng.uniform(2.0, 12.0))
                self._take(fleet, self._workers.pop(0))
                self._workers.append(self._cluster.add())
        except TimeoutError as error:
            self.problem = str(error)
        os.kill(os.getpid(), signal.SIGINT)

    def _take(self, fleet: CheckedFleet, worker: str) -> None:
        """End a worker. If it had a pack, wait until that has gone on elsewhere."""
        lost, ready = fleet.lost, fleet.ready
        hit = worker in fleet.nodes_in_use
        self.ended.append(time.time())
        self._cluster.end(worker)
        began = time.monotonic()
        if not hit:
            return
        self._wait(lambda: fleet.lost > lost, "the loss was not noticed")
        noticed = time.monotonic() - began
        self._wait(lambda: fleet.ready > ready, "the pack did not go on")
        self.times.append((noticed, time.monotonic() - began))
        print(f"loss {fleet.lost}: noticed after {noticed:.1f} s, goes on after {self.times[-1][1]:.1f} s")

    @staticmethod
    def _wait(what: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what():
            if time.monotonic() > deadline:
                raise TimeoutError(problem)
            time.sleep(0.05)


def main() -> int:
    """Run the storm; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--copy-seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no further loss after this time")
    given = parser.parse_args()
    cluster = Cluster()
    storm = Storm(cluster, given.losses, given.seconds, given.seed)
    with tempfile.TemporaryDirectory() as out:
        base = changed(
            Config(env="toy/shaped", num_policies=4, devices="cpu,cpu"),
            {"nodes": f"ray:{cluster.address}", "copy_seconds": given.copy_seconds},
        )
        config = replace(
            base,
            name="storm",
            out=Path(out),
            actors=2,
            units_per_actor=1,
            envs_per_unit=4,
            learner=LearnerConfig(rollout=512, batch=2048),
            learner_timeout_seconds=120.0,
            figures=False,
            pbt=replace(base.pbt, start_frames=2000, period_frames=2000, min_episodes=2),
        )
        with connected(config) as over:
            storm.start()
            code = train_on(Checked(over.engine), config)
        lost = [e for e in read_journal(Path(out) / "storm" / "journal.jsonl") if e["event"] == "pack_lost"]
    cluster.close()
    [fleet] = FLEETS
    problems = [*fleet.wrong, *([storm.problem] if storm.problem else [])]
    if code != 128 + signal.SIGINT:
        problems.append(f"the run has ended with code {code}")
    if not fleet.checked:
        problems.append("no member was compared")
    ages = ages_of(lost, storm.ended)
    if max(ages, default=0.0) > given.copy_seconds + SLACK_SECONDS:
        problems.append(f"a copy was {max(ages):.1f} s old when its node was taken away")
    report(fleet, storm, lost, ages)
    print("\n".join(problems) or "all is well")
    return 1 if problems else 0


def ages_of(lost: list[dict[str, Any]], ended: list[float]) -> list[float]:
    """Return the age of each copy that a member went on from when its node was taken away, in seconds."""
    ages = []
    for event in lost:
        since = event["time"] - max(time for time in ended if time <= event["time"])
        copies = [m["from"] for m in event["members"] if "copy_age_seconds" in m["from"]]
        ages += [copy["copy_age_seconds"] - since for copy in copies]
    return ages


def report(fleet: CheckedFleet, storm: Storm, lost: list[dict[str, Any]], ages: list[float]) -> None:
    """Print what was lost."""
    frames = [m["frames_lost"] for e in lost for m in e["members"]]
    print(
        f"{len(lost)} losses; {fleet.checked} members compared bit by bit, {len(fleet.wrong)} of them wrong"
    )
    print(f"{fleet.late} members had trained before they could be compared")
    for what, seconds in zip(("noticed", "gone on"), zip(*storm.times, strict=True), strict=False):
        print(f"{what} after {min(seconds):.1f} to {max(seconds):.1f} s, median {median(seconds):.1f} s")
    print(f"age of the copies when the node was taken away: {max(ages, default=0.0):.1f} s at most")
    print(f"frames of training lost per member: {max(frames, default=0):,} at most, in all {sum(frames):,}")


if __name__ == "__main__":
    sys.exit(main())
