"""Clusters of Ray on this machine, and runs over them. Imported only where Ray is."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[3]
STORE_BYTES = 100_000_000
OPTIONS = (
    "--env=toy/shaped --num-policies=4 --actors=2 --vector-envs-per-actor=1 --envs-per-vector-env=4"
    " --learner.rollout=16 --learner.batch=128 --no-figures --pbt.start-frames=2000 --pbt.period-frames=2000"
    " --pbt.min-episodes=2 --train-for-frames=100000000 --learner-timeout-seconds=120"
)


@contextmanager
def unmarked():
    """What begins here is shared by several tests: it is not what one of them left behind."""
    own = os.environ.pop("PBT_RL_TESTS", None)
    try:
        yield
    finally:
        if own is not None:
            os.environ["PBT_RL_TESTS"] = own


class Nodes:
    """A head without packs, and worker nodes of one core."""

    def __init__(self, workers: int) -> None:
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        with unmarked():
            os.environ |= {"RAY_worker_niceness": "0", "RAY_enable_metrics_collection": "0"}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address, self.workers = self._cluster.address, []
        for _ in range(workers):
            self.add()

    def add(self) -> None:
        with unmarked():
            self.workers.append(self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))

    def kill(self, worker) -> None:
        """End a node without warning."""
        self.workers.remove(worker)
        self._cluster.remove_node(worker, allow_graceful=False)

    def drain(self, worker) -> None:
        """Announce that a node will be taken away in a minute, as autoscalers do."""
        command = [Path(sys.executable).parent / "ray", "drain-node", f"--address={self.address}"]
        command += [f"--node-id={worker.node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--reason-message=a test", "--deadline-remaining-seconds=60"]
        subprocess.run(command, check=True, capture_output=True)

    def raylet(self, worker) -> int:
        """Return the process id of a node's raylet."""
        return worker.all_processes["raylet"][0].process.pid

    def close(self) -> None:
        self._cluster.shutdown()


class Run:
    """`pbt-rl train` as a process."""

    def __init__(self, out: Path, name: str, *options: str, command: str = "train") -> None:
        self.folder, self.log = out / name, out / f"{name}.log"
        words = (*OPTIONS.split(), f"--out={out}", f"--name={name}")
        words = words if command == "train" else (str(self.folder),)
        with self.log.open("a") as log:
            words = [sys.executable, "-m", "pbt_rl", command, *words, *options]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def events(self, *kinds: str) -> list[dict]:
        """Return the journal's events of these kinds."""
        try:
            lines = (self.folder / "journal.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # being written
                continue
            if event["event"] in kinds:
                found.append(event)
        return found

    def wait(self, what, seconds: float = 300.0) -> None:
        """Wait until `what()` holds."""
        deadline = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.text()}"
            assert time.monotonic() < deadline, f"still not after {seconds:.0f} s:\n{self.text()}"
            time.sleep(0.2)

    def text(self) -> str:
        return self.log.read_text()[-4000:]

    def comparisons(self, more: int = 2) -> None:
        """Wait for some more comparisons with decisions."""
        before = len(self.events("round"))
        self.wait(lambda: len(self.events("round")) >= before + more)

    def end(self, number: int, seconds: float = 60.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
