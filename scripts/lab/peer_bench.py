"""Run the peers on the job of scripts/bench.py: Sample Factory 2.1.1, and a synchronous PPO loop over EnvPool.

    python scripts/lab/peer_bench.py sample-factory --num-policies 4 --backend envpool --seconds 60
    python scripts/lab/peer_bench.py sync-loop --precision bf16 --seconds 60
    python scripts/lab/peer_bench.py replacements --seconds 180
    python scripts/lab/peer_bench.py sweep --backend atari --seconds 30

The peers live in a virtual environment of their own (`.venv-peers`, made on the first call). Each run is a process
group of its own, of which nothing is left afterwards. The last line of stdout is one JSON object.
*frames* are emulator frames: 4 a step.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro

Backend = Literal["atari", "envpool"]
"""Sample Factory's own Atari environments, or its EnvPool integration."""

JOBS = Path(__file__).parent / "peers"
VENV = Path(__file__).parents[2] / ".venv-peers"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- looked at, to leave nothing there
START_LIMIT_SECONDS = 300
"""Time limit of a job beyond its warm-up and window: imports, environments, the end."""
END_SECONDS = 20
"""Time limit of an orderly end after the job's report."""
LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc keeps freed blocks, instead of mapping and page-faulting the activations anew at every step."""


@dataclass(frozen=True)
class PeerRun:
    """Steady-state speed of one peer, and the other measurements of its job."""

    frames_per_second: float
    """Emulator frames learned from per second, over all policies, start-up and warm-up excluded."""
    details: Mapping[str, Any]
    """The job's own report; `settings` holds the peer's settings."""


@dataclass(frozen=True)
class SampleFactorySettings:
    """The tuned settings of Sample Factory; its script fixes the job itself (network, rollout, epochs)."""

    workers: int
    envs_per_worker: int
    """Single environments per worker, or rows of its EnvPool."""
    splits: int = 1
    """Groups per worker that take turns (its double buffering); 1 with EnvPool."""
    envpool_threads: int = 1
    """Threads of each worker's EnvPool."""
    batch: int = 1024
    """Steps per policy in a batch."""

    def arguments(self, backend: Backend) -> list[str]:
        """Name them as Sample Factory does."""
        rows = {
            "atari": {"num_envs_per_worker": self.envs_per_worker, "worker_num_splits": self.splits},
            "envpool": {"num_envs_per_worker": 1, "worker_num_splits": 1, "env_agents": self.envs_per_worker},
        }[backend]
        options = {"num_workers": self.workers, "batch_size": self.batch} | rows
        return [f"--{name}={value}" for name, value in options.items()]


def tuned(num_policies: int, backend: Backend, cores: int | None = None) -> SampleFactorySettings:
    """Return the best settings found by `sweep` (docs/lab/speed.md), scaled to the machine's cores.

    With EnvPool every worker serves one policy, so that their number is a multiple of the policies'.
    """
    cores = cores or len(os.sched_getaffinity(0))
    if backend == "atari":
        return SampleFactorySettings(workers=cores, envs_per_worker=8, splits=2)
    return SampleFactorySettings(workers=num_policies * -(-cores // num_policies), envs_per_worker=16)


def run_sample_factory(
    num_policies: int = 1,
    backend: Backend = "atari",
    *,
    seconds: float = 60.0,
    warmup_seconds: float = 15.0,
    settings: SampleFactorySettings | None = None,
    venv: Path = VENV,
) -> PeerRun:
    """Measure Sample Factory on Pong; several policies run with its PBT on.

    With its default periods its PBT compares nothing within such a run, and so costs it nothing. Raises
    RuntimeError with the log's tail if it cannot be installed or run.
    """
    settings = settings or tuned(num_policies, backend)
    options = _sample_factory_options(num_policies, backend, seconds, warmup_seconds, settings)
    options += [f"--with_pbt={num_policies > 1}"]
    details, _ = _run_job("sample_factory_job.py", options, venv, seconds + warmup_seconds)
    return PeerRun(details["frames_per_second"], details | {"settings": asdict(settings)})


def run_sync_loop(
    precision: Literal["bf16", "float32"] = "bf16",
    seconds: float = 60.0,
    warmup_seconds: float = 10.0,
    venv: Path = VENV,
) -> PeerRun:
    """Measure the synchronous PPO loop over EnvPool, on all cores. Raises RuntimeError as above."""
    options = [f"--precision={precision}", f"--seconds={seconds}", f"--warmup-seconds={warmup_seconds}"]
    details, _ = _run_job("sync_loop.py", options, venv, seconds + warmup_seconds)
    return PeerRun(details["frames_per_second"], details)


def time_replacements(num_policies: int = 4, seconds: float = 180.0, venv: Path = VENV) -> list[float]:
    """Return the seconds from each decision of Sample Factory's PBT to the new weights in the learner.

    Its PBT is made to compare often, and to replace on any difference; times are those of its log lines.
    """
    settings = tuned(num_policies, "atari")
    eager = {
        "with_pbt": True,
        "pbt_period_env_steps": 8 * settings.batch,
        "pbt_start_mutation": 8 * settings.batch,
        "pbt_replace_reward_gap": 0,
        "pbt_replace_reward_gap_absolute": 0,
    }
    options = _sample_factory_options(num_policies, "atari", seconds, 0.0, settings)
    options += [f"--{name}={value}" for name, value in eager.items()]
    _, log = _run_job("sample_factory_job.py", options, venv, seconds)
    return replacement_seconds(log)


def replacement_seconds(log: str) -> list[float]:
    """Pair "policy P weights to be replaced" with the next "Loaded experiment state" of learner P."""
    line = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\]\[(\d+)\] (.*)")
    policy_of_process: dict[int, int] = {}
    decided_at: dict[int, datetime] = {}
    seconds = []
    for stamp, process, message in line.findall(log):
        at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007 -- only differences are used
        if born := re.match(r"LearnerWorker_p(\d+)\s+pid (\d+)", message):
            policy_of_process[int(born[2])] = int(born[1])
        elif decided := re.search(r"policy (\d+) weights to be replaced", message):
            decided_at[int(decided[1])] = at
        elif "Loaded experiment state" in message:
            policy = policy_of_process[int(process)]
            if policy in decided_at:  # otherwise it is the load at its start
                seconds.append((at - decided_at.pop(policy)).total_seconds())
    return seconds


def sweep(
    backend: Backend = "atari", num_policies: int = 1, seconds: float = 30.0, venv: Path = VENV
) -> list[PeerRun]:
    """Try settings around the tuned ones, about a minute each; return them fastest first."""
    cores = len(os.sched_getaffinity(0))
    least = num_policies * -(-cores // num_policies) if backend == "envpool" else cores
    grid = [
        SampleFactorySettings(workers, envs, splits=2 if backend == "atari" else 1, envpool_threads=threads)
        for workers in (least, 2 * least)
        for envs in ((8, 16) if backend == "atari" else (16, 32))
        for threads in ((1,) if backend == "atari" else (1, cores))
    ]
    runs = [run_sample_factory(num_policies, backend, seconds=seconds, settings=s, venv=venv) for s in grid]
    return sorted(runs, key=lambda run: run.frames_per_second, reverse=True)


def peers_python(venv: Path = VENV) -> Path:
    """Return the interpreter of the peers' virtual environment; make it if it is missing or out of date.

    Torch and ale-py are this interpreter's versions: peers and project differ in nothing but themselves.
    Torch goes first, and constrains the rest, so that pip never resolves to another build of it. Raises RuntimeError
    for the environment that runs this, whose packages the peers' would replace, and if pip fails.
    """
    if venv.resolve() == Path(sys.prefix).resolve():
        raise RuntimeError(f"{venv} is the environment of this project: the peers need one of their own")
    torch = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    peers = ["sample-factory==2.1.1", "envpool==1.2.5", f"ale-py=={importlib.metadata.version('ale-py')}"]
    pins = [torch, "numpy==1.26.4", "gymnasium==0.29.1"]
    python, stamp = venv / "bin" / "python", venv / "installed.txt"
    wanted = "\n".join(pins + peers)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing the peers into {venv} (once; about 2 GB)", file=sys.stderr)
    venv.mkdir(parents=True, exist_ok=True)
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join(pins))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    for command in ([sys.executable, "-m", "venv", str(venv)], [*pip, torch, "numpy"], [*pip, *peers]):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"cannot install the peers: {' '.join(command)} failed:\n{_tail(done.stdout)}")
    stamp.write_text(wanted)
    return python


def _sample_factory_options(
    num_policies: int,
    backend: Backend,
    seconds: float,
    warmup_seconds: float,
    settings: SampleFactorySettings,
) -> list[str]:
    job = [f"--backend={backend}", f"--policies={num_policies}", f"--seconds={seconds}"]
    job += [f"--warmup-seconds={warmup_seconds}", f"--envpool-threads={settings.envpool_threads}"]
    return [*job, "--", *settings.arguments(backend)]


def _run_job(
    script: str, options: Sequence[str], venv: Path, expected_seconds: float
) -> tuple[dict[str, Any], str]:
    """Run a script with the peers' interpreter; return its report and its log. Nothing of it is left running."""
    with tempfile.TemporaryDirectory() as folder, _clean_shared_memory():
        report, log = Path(folder) / "report.json", Path(folder) / "log.txt"
        command = [str(peers_python(venv)), "-W", "ignore", str(JOBS / script), f"--json={report}", *options]
        with log.open("w") as out:
            job = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment(),
                cwd=folder,
                start_new_session=True,
            )
        try:
            exit_code = _wait(job, report, expected_seconds + START_LIMIT_SECONDS)
        finally:
            _end_group(job)
        if not report.exists():
            ending = "gave no result in time" if exit_code is None else f"failed with exit code {exit_code}"
            raise RuntimeError(f"{script} {ending}; the end of its log:\n{_tail(log.read_text())}")
        return json.loads(report.read_text()), log.read_text()


def _environment() -> dict[str, str]:
    """Return the jobs' environment: nothing that points at this project or limits threads; large blocks kept."""
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "OMP_NUM_THREADS"}}
    # Its checkpoints are pickles of its own making, which torch 2.6 and later refuse by default.
    return inherited | LARGE_BLOCKS | {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def _wait(job: subprocess.Popen[bytes], report: Path, limit_seconds: float) -> int | None:
    """Wait until the job ends, or its report is there and it had time to end in order. Return its exit code."""
    deadline = time.monotonic() + limit_seconds
    reported = False
    while job.poll() is None and time.monotonic() < deadline:
        if not reported and report.exists():
            reported, deadline = True, time.monotonic() + END_SECONDS
        time.sleep(0.2)
    return job.returncode


def _end_group(job: subprocess.Popen[bytes]) -> None:
    """End the job's process group: politely first, so that torch and multiprocessing unlink their memory."""
    for number, patience_seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience_seconds
        try:
            os.killpg(job.pid, number)
            while time.monotonic() < deadline:
                job.poll()  # reaps the leader, which would count as a member of its group otherwise
                os.killpg(job.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return
    raise RuntimeError(
        f"processes of group {job.pid} survived SIGKILL; look at `ps -o pid,stat,cmd -g {job.pid}`"
    )


@contextmanager
def _clean_shared_memory() -> Iterator[None]:
    """Remove what appeared in /dev/shm meanwhile under the name of a torch process that is gone."""
    before = {path.name for path in SHARED_MEMORY.iterdir()}
    try:
        yield
    finally:
        _remove_orphans(before)


def _remove_orphans(before: set[str]) -> None:
    for path in SHARED_MEMORY.glob("torch_*_*"):
        creator = path.name.split("_")[1]
        if path.name not in before and not Path(f"/proc/{creator}").exists():
            path.unlink(missing_ok=True)


def _tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.splitlines()[-lines:])


def _report_replacements(num_policies: int = 4, seconds: float = 180.0, venv: Path = VENV) -> dict[str, Any]:
    """Time Sample Factory's replacements: seconds from the decision to new weights in the learner."""
    times = time_replacements(num_policies, seconds, venv)
    if not times:
        raise RuntimeError(f"Sample Factory replaced no policy within {seconds} s: give more --seconds")
    return {"replacements": len(times), "seconds_median": median(times), "seconds": times}


def main() -> None:
    """Run one of the functions above by name; print its result as JSON."""
    answer: PeerRun | list[PeerRun] | dict[str, Any] = tyro.extras.subcommand_cli_from_dict(
        {
            "sample-factory": run_sample_factory,
            "sync-loop": run_sync_loop,
            "replacements": _report_replacements,
            "sweep": sweep,
        },
        description=__doc__,
    )
    runs = {"runs": [asdict(run) for run in answer]} if isinstance(answer, list) else answer
    print(json.dumps(asdict(runs) if isinstance(runs, PeerRun) else runs))


if __name__ == "__main__":
    main()
