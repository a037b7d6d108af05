"""Run Sample Factory 2.1.1 on the job of scripts/bench.py, with its Atari environments and with EnvPool.

    python scripts/bench.py --env atari/pong --peer

The first call installs Sample Factory into a separate virtual environment, `.venv-peers`. Each run is a separate
process group. At the end, all processes of the group are ended. *frames* are emulator frames: 4 per step.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Backend = Literal["atari", "envpool"]
"""Atari environments of Sample Factory, or Sample Factory's EnvPool integration."""

JOBS = Path(__file__).parent / "peers"
VENV = Path(__file__).parents[2] / ".venv-peers"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- cleaned after a run
START_LIMIT_SECONDS = 300
"""Time limit of a job for imports, construction of environments and shutdown, in addition to the measurement."""
END_SECONDS = 20
"""Seconds after a job's report at which its processes are killed."""
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
}
"""Environment variables of a job.

With the first two, glibc retains freed memory. Otherwise activations would cause page faults in each step. The last
variable allows pickles: Sample Factory's checkpoints are pickles, which torch 2.6 and later refuse by default."""


def tuned(num_policies: int, backend: Backend, cores: int | None = None) -> list[str]:
    """Return the best known options of Sample Factory (docs/lab/speed.md), scaled to the cores of the machine.

    The number of workers with EnvPool is a multiple of the number of policies, because each worker has one policy.
    """
    cores = cores or len(os.sched_getaffinity(0))
    if backend == "atari":
        found = {"num_workers": cores, "num_envs_per_worker": 8, "worker_num_splits": 2}
    else:
        workers = num_policies * -(-cores // num_policies)
        rows = {"num_envs_per_worker": 1, "worker_num_splits": 1, "env_agents": 16}
        found = {"num_workers": workers, **rows}
    return [f"--{name}={value}" for name, value in (found | {"batch_size": 1024}).items()]


def run_sample_factory(num_policies: int, backend: Backend, seconds: float) -> float:
    """Return the frames/s of Sample Factory on Pong, summed over all policies.

    With several policies, Sample Factory's PBT is on, but makes no comparison in such a short run (default periods).
    Raises RuntimeError if Sample Factory cannot be installed or run.
    """
    options = [
        f"--backend={backend}",
        f"--policies={num_policies}",
        f"--seconds={seconds}",
        "--warmup-seconds=15",
    ]
    options += ["--", *tuned(num_policies, backend), f"--with_pbt={num_policies > 1}"]
    return float(run_job("sample_factory_job.py", options, seconds + 15)["frames_per_second"])


def peers_python() -> Path:
    """Return the interpreter of the peers' virtual environment. Make this environment if it is missing or out of date.

    For a fair comparison, it has the torch and ale-py releases of this interpreter. torch is installed
    first, as a constraint for the other packages. Otherwise pip would replace torch.
    Raises RuntimeError if pip fails, or if this process runs in the peers' environment.
    """
    if VENV.resolve() == Path(sys.prefix).resolve():
        raise RuntimeError(f"{VENV} is the environment of this project: use a separate one for the peers")
    torch = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    peers = ["sample-factory==2.1.1", "envpool==1.2.5", f"ale-py=={importlib.metadata.version('ale-py')}"]
    pins = [torch, "numpy==1.26.4", "gymnasium==0.29.1"]
    python, stamp = VENV / "bin" / "python", VENV / "installed.txt"
    wanted = "\n".join(pins + peers)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing the peers into {VENV} (once; about 2 GB)", file=sys.stderr)
    VENV.mkdir(parents=True, exist_ok=True)
    constraints = VENV / "constraints.txt"
    constraints.write_text("\n".join(pins))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    for command in ([sys.executable, "-m", "venv", str(VENV)], [*pip, torch, "numpy"], [*pip, *peers]):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"cannot install the peers: {' '.join(command)} failed:\n{_tail(done.stdout)}")
    stamp.write_text(wanted)
    return python


def run_job(
    script: str, options: Sequence[str], expected_seconds: float, python: Path | None = None
) -> dict[str, Any]:
    """Run a script, and end all its processes. Return the report of the script. python: default peers_python()."""
    with tempfile.TemporaryDirectory() as folder, _clean_shared_memory():
        report, log = Path(folder) / "report.json", Path(folder) / "log.txt"
        command = [
            str(python or peers_python()),
            "-W",
            "ignore",
            str(JOBS / script),
            f"--json={report}",
            *options,
        ]
        inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "OMP_NUM_THREADS"}}
        with log.open("w") as out:
            job = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=inherited | ENVIRONMENT,
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
        measured: dict[str, Any] = json.loads(report.read_text())
        return measured


def _wait(job: subprocess.Popen[bytes], report: Path, limit_seconds: float) -> int | None:
    """Wait for the end of a job: at most `limit_seconds`, and after its report at most END_SECONDS.

    Return the exit code. None if the job still runs.
    """
    deadline = time.monotonic() + limit_seconds
    reported = False
    while job.poll() is None and time.monotonic() < deadline:
        if not reported and report.exists():
            reported, deadline = True, time.monotonic() + END_SECONDS
        time.sleep(0.2)
    return job.returncode


def _end_group(job: subprocess.Popen[bytes]) -> None:
    """End the process group of a job: first with SIGTERM, after 5 s with SIGKILL. Raises RuntimeError if both fail.

    At SIGTERM, torch and multiprocessing unlink shared memory.
    """
    for number, timeout_seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + timeout_seconds
        try:
            os.killpg(job.pid, number)
            while time.monotonic() < deadline:
                job.poll()  # reaps the leader, which otherwise would still count as a member of its group
                os.killpg(job.pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return
    raise RuntimeError(
        f"processes of group {job.pid} survived SIGKILL; look at `ps -o pid,stat,cmd -g {job.pid}`"
    )


@contextmanager
def _clean_shared_memory() -> Iterator[None]:
    """Remove the files in /dev/shm that torch processes created during the `with` block and left behind."""
    before = {path.name for path in SHARED_MEMORY.iterdir()}
    try:
        yield
    finally:
        for path in SHARED_MEMORY.glob("torch_*_*"):
            creator = path.name.split("_")[1]
            if path.name not in before and not Path(f"/proc/{creator}").exists():
                path.unlink(missing_ok=True)


def _tail(text: str, lines: int = 30) -> str:
    return "\n".join(text.splitlines()[-lines:])
