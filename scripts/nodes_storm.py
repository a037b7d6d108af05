"""Takes nodes away from a run over a cluster at random moments, and checks what its members go on from.

    make test-nodes && .venv-nodes/bin/python scripts/nodes_storm.py --losses 20

The cluster is one of Ray on this machine: three workers for two packs. One worker after the other is ended without
warning, and another one is added. After each loss of a pack: the weights of its members, as the new learner has them
before it trains, are bit for bit those of the copies that they were restored from; the run goes on. At the end it says
how old the copies were and how much training was lost.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import Config, LearnerConfig
from pbt_rl.nodes.fleet import NodeFleet
from pbt_rl.nodes.messages import Send
from pbt_rl.nodes.train import OverNodes, connected
from pbt_rl.record.journal import read_journal
from pbt_rl.run.fleet import Event, LearnerLost, Received
from pbt_rl.run.memory import Matchups
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.start import Start
from pbt_rl.run.train import train
from pbt_rl.wire.messages import ExportMember, LearnerReady, MemberExported

STORE_BYTES = 100_000_000
PATIENCE_SECONDS = 300.0


class CheckedFleet(NodeFleet):
    """Has every learner that replaces another one export its members before it trains, and compares their bits."""

    checked = lost = ready = 0
    wrong: tuple[str, ...] = ()
    _expected: Mapping[tuple[int, int], Mapping[str, NDArray[Any]]] = {}

    def replace_learner(self, pack: int, start: Start) -> None:
        """See NodeFleet."""
        super().replace_learner(pack, start)
        states = [load(self.names) for _, load in start.sources]
        members = {(pack, one.header.member): one.arrays for one in states if not one.header.remembered}
        self._expected = {key: x for key, x in self._expected.items() if key[0] != pack} | members
        self._stations[pack].orders += [Send(ExportMember(member, None)) for _, member in members]

    def events(self, patience_seconds: float) -> Iterator[Event]:
        """See NodeFleet. What was exported for the comparison concerns nobody else."""
        for event in super().events(patience_seconds):
            if isinstance(event, Received) and isinstance(event.message, MemberExported):
                key = (event.pack, event.message.header.member)
                expected = self._expected.get(key)
                if expected is not None:
                    self._expected = {other: x for other, x in self._expected.items() if other != key}
                    self._compare(key, expected)
                    continue
            yield event
            self.lost += isinstance(event, LearnerLost)
            self.ready += isinstance(event, Received) and isinstance(event.message, LearnerReady)

    def _compare(self, key: tuple[int, int], expected: Mapping[str, NDArray[Any]]) -> None:
        self.checked += 1
        found = self._exchange or {}
        same = found.keys() == expected.keys() and all(
            np.array_equal(found[name], expected[name], equal_nan=True) for name in expected
        )
        if not same:
            self.wrong += (f"member {key[1]} in pack {key[0]} is not as it was copied",)


class Checked(OverNodes):
    """A cluster whose fleets are checked."""

    fleets: list[CheckedFleet]

    def fleet(self, resolved: ResolvedRun, start: Start, matchups: Matchups) -> CheckedFleet:
        """See OverNodes."""
        made = CheckedFleet(self.engine, resolved, start, matchups)
        FLEETS.append(made)
        return made


FLEETS: list[CheckedFleet] = []


class Storm(threading.Thread):
    """Takes nodes away until there were enough losses, and ends the run then."""

    def __init__(self, cluster: Any, losses: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._losses, self._rng = cluster, losses, random.Random(seed)
        self._workers = [self._add() for _ in range(3)]
        self.problem = ""

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

    def run(self) -> None:
        """See Thread."""
        try:
            self._wait(lambda: bool(FLEETS) and FLEETS[0].ready >= 2, "nothing started")
            fleet = FLEETS[0]
            while fleet.lost < self._losses:
                time.sleep(self._rng.uniform(2.0, 12.0))
                lost, ready = fleet.lost, fleet.ready
                spare = self._workers.pop(0)
                hit = any(s.place is not None and s.place.node == spare.node_id for s in fleet._stations)  # noqa: SLF001
                self._cluster.remove_node(spare, allow_graceful=False)
                began = time.monotonic()
                if hit:
                    self._wait(lambda: fleet.lost > lost, "the loss was not noticed")  # noqa: B023
                    noticed = time.monotonic() - began
                    self._wait(lambda: fleet.ready > ready, "the pack did not go on")  # noqa: B023
                    back = time.monotonic() - began
                    print(
                        f"loss {fleet.lost}: noticed after {noticed:.1f} s, goes on after {back:.1f} s",
                        flush=True,
                    )
                self._workers.append(self._add())
        except TimeoutError as error:
            self.problem = str(error)
        os.kill(os.getpid(), signal.SIGINT)

    @staticmethod
    def _wait(what: Any, problem: str) -> None:
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
    given = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - reads the environment

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    storm = Storm(cluster, given.losses, given.seed)
    with tempfile.TemporaryDirectory() as out:
        base = Config(env="toy/shaped", num_policies=4, devices="cpu,cpu", nodes=f"ray:{cluster.address}")
        config = replace(
            base,
            name="storm",
            out=Path(out),
            actors=2,
            units_per_actor=1,
            envs_per_unit=4,
            learner=LearnerConfig(rollout=16, batch=128),
            copy_seconds=given.copy_seconds,
            figures=False,
            pbt=replace(base.pbt, start_frames=2000, period_frames=2000, min_episodes=2),
        )
        with connected(config) as over:
            storm.start()
            code = train(config, cluster=Checked(over.engine))
        lost = [e for e in read_journal(Path(out) / "storm" / "journal.jsonl") if e["event"] == "pack_lost"]
    cluster.shutdown()
    ages = [
        m["from"]["copy_age_seconds"] for e in lost for m in e["members"] if "copy_age_seconds" in m["from"]
    ]
    frames = [m["frames_lost"] for e in lost for m in e["members"]]
    [fleet] = FLEETS
    print(f"{len(lost)} losses, {fleet.checked} members compared bit by bit, {len(fleet.wrong)} wrong")
    print(f"age of the copies when the loss was noticed: {max(ages, default=0):.1f} s at most")
    print(f"frames of training lost per member: {max(frames, default=0):,} at most, in all {sum(frames):,}")
    problems = [*fleet.wrong, *([storm.problem] if storm.problem else [])]
    print("\n".join(problems) or "all is well")
    return 1 if problems or code != 128 + signal.SIGINT or not fleet.checked else 0


if __name__ == "__main__":
    sys.exit(main())
