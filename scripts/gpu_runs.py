"""The stages of gpu_check.py that train by the command. Each gets a Job and returns figures, as in gpu_stages.py."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from bench_account import role_of
from gpu_stand import Job

from pbt_rl.cli.train import parse_train
from pbt_rl.run.plan import Machine
from pbt_rl.run.resolved import ResolvedRun


def serial(job: Job) -> dict[str, Any]:
    """Train twice in serial mode with one seed; compare what was saved."""
    found = []
    with tempfile.TemporaryDirectory() as out:
        for number in range(2):
            words = ("--mode=serial", f"--devices={job.device}", "--seed=5", "--train-for-frames=3000")
            train_run(job, 2, out, f"run{number}", *words)
            files = sorted((Path(out) / f"run{number}" / "checkpoints").rglob("*.safetensors"))
            found.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    return {"members": len(found[0]), "passed": bool(found[0]) and found[0] == found[1]}


def train(job: Job) -> dict[str, Any]:
    """Train a whole population for a while."""
    (policies,) = job.policies
    with tempfile.TemporaryDirectory() as out:
        words = (
            f"--devices={job.device}",
            f"--train-for-seconds={job.seconds}",
            "--train-for-frames=1000000000",
        )
        usage = train_run(job, policies, out, "run", *words)
        summary = json.loads((Path(out) / "run" / "summary.json").read_text())
    rate = summary["frames_per_second"] / usage.pop("frames a step")
    found: dict[str, Any] = {"steps/s": rate} | ({"share": rate / job.limit} if job.limit else {})
    for name, one in summary.get("replayed", {}).items():
        found[f"{name} replayed"] = one["replayed"] / max(1, one["of"])
        found |= {f"{name} not replayed": one["why_not"]} if one["why_not"] else {}
    lag = summary["policy_lag"]
    found |= {"discarded": summary["discarded_rollouts"], "lag mean": lag["mean"], "lag max": lag["max"]}
    return found | usage | {"said": "; ".join(summary["warnings"])}


def two(job: Job) -> dict[str, Any]:
    """Train a population on two devices."""
    if job.on_gpu and torch.cuda.device_count() < 2:
        return {"left out": "one GPU"}
    devices, even = ("cuda:0,cuda:1", 0.8) if job.on_gpu else ("cpu,cpu", 0.3)
    if (
        not job.on_gpu
    ):  # two learners of images take minutes there, and whether the stage works is all that is asked
        job = replace(job, env="toy/identity")
    policies = max(2, max(job.policies) // 2 * 2)
    with tempfile.TemporaryDirectory() as out:
        words = (
            f"--devices={devices}",
            f"--train-for-seconds={job.seconds}",
            "--train-for-frames=1000000000",
        )
        used = train_run(job, policies, out, "run", *words, "--pbt.no-enabled")
        summary = json.loads((Path(out) / "run" / "summary.json").read_text())
    frames = [member["frames"] for member in summary["members"]]
    return {
        "steps/s": summary["frames_per_second"] / used["frames a step"],
        "discarded": summary["discarded_rollouts"],
        "fewest over most frames": min(frames) / max(frames),
        "GPUs of one process": used.get("GPUs of one process", 0),
        "passed": min(frames) > even * max(frames) and used.get("GPUs of one process", 0) <= 1,
    }


def train_run(job: Job, policies: int, out: str, name: str, *words: str) -> dict[str, float]:
    """Train by the command, and watch its learner meanwhile. Raises RuntimeError with its output if it fails."""
    options = [
        f"--env={job.env}",
        f"--num-policies={policies}",
        f"--out={out}",
        f"--name={name}",
        "--no-figures",
    ]
    command = [sys.executable, "-m", "pbt_rl", "train", *options, *words]
    log = Path(job.keep or out) / f"{job.stage}_{name}.txt"
    cores, memory, gpus = 0.0, 0.0, 0
    before = _used(job)  # this process's own context
    with log.open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        seen: dict[int, tuple[float, float]] = {}
        while running.poll() is None:
            time.sleep(1.0)
            cores = max(cores, _learner_cores(running.pid, seen))
            if job.on_gpu:
                memory = max(memory, _used(job) - before)
                gpus = max(gpus, _gpus_of_one_process())
    for path in (Path(out) / name).glob("logs/learner*") if job.keep else ():
        Path(job.keep, f"{job.stage}_{name}_{path.name}").write_bytes(path.read_bytes())
    if running.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}:\n{log.read_text()[-1500:]}")
    frame_skip = ResolvedRun.resolve(parse_train([f"--env={job.env}"])[0], Machine.here()).spec.frame_skip
    used = {"frames a step": float(frame_skip), "learner cores": cores}
    return used | ({"gpu GiB": memory, "GPUs of one process": float(gpus)} if job.on_gpu else {})


def _used(job: Job) -> float:
    """Return the memory in use on the device, GiB."""
    if not job.on_gpu:
        return 0.0
    free, total = torch.cuda.mem_get_info(job.torch_device)
    return float(total - free) / 2**30


def _gpus_of_one_process() -> int:
    """Return on how many GPUs a process has a context, that with most of them; 0 if nvidia-smi does not say."""
    question = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    pairs = {tuple(line.split(", ")) for line in asked.stdout.splitlines() if ", " in line}
    return max(Counter(pid for pid, _ in pairs).values(), default=0)


def _learner_cores(pid: int, seen: dict[int, tuple[float, float]]) -> float:
    """Return the cores that the learner under a run uses, since it was seen first; 0 before it has run for 5 s."""
    try:
        for child in psutil.Process(pid).children(recursive=True):
            if role_of(child.cmdline()) == "learner":
                now, used = time.monotonic(), sum(child.cpu_times()[:2])
                began, before = seen.setdefault(child.pid, (now, used))
                return (used - before) / (now - began) if now - began > 5 else 0.0
    except psutil.Error:
        pass
    return 0.0
