"""The peers' harness, without the peers: jobs are small scripts, and what they leave is removed."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "lab" / "peer_bench.py"
SPEC = importlib.util.spec_from_file_location("peer_bench", SCRIPT)
peer_bench = importlib.util.module_from_spec(SPEC)
sys.modules["peer_bench"] = peer_bench
SPEC.loader.exec_module(peer_bench)


@pytest.fixture
def run_job(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_bench, "JOBS", tmp_path)
    monkeypatch.setattr(peer_bench, "peers_python", lambda: Path(sys.executable))
    monkeypatch.setattr(peer_bench, "START_LIMIT_SECONDS", 5)
    monkeypatch.setattr(peer_bench, "END_SECONDS", 0.5)

    def run(code):
        (tmp_path / "job.py").write_text("import sys, subprocess, time, pathlib\n" + code)
        return peer_bench._run_job("job.py", [], 0.0)

    return run


@pytest.mark.parametrize(("policies", "cores", "workers"), [(1, 2, 2), (4, 2, 4), (4, 6, 8), (3, 16, 18)])
def test_with_envpool_every_policy_has_as_many_workers(policies, cores, workers):
    assert f"--num_workers={workers}" in peer_bench.tuned(policies, "envpool", cores)


def test_a_failing_job_shows_the_end_of_its_log(run_job):
    with pytest.raises(RuntimeError, match=r"(?s)exit code 3.*no such thing"):
        run_job("print('no such thing'); sys.exit(3)")


def test_a_job_that_hangs_after_its_report_is_ended_with_its_children(run_job, tmp_path):
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    note = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str({child}.pid))"
    report = "pathlib.Path(sys.argv[1].partition('=')[2]).write_text('{\"frames_per_second\": 1}')"
    started = time.monotonic()
    assert run_job(f"{note}\n{report}\ntime.sleep(60)") == 1
    assert time.monotonic() - started < 5
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_job_without_a_report_is_ended_in_time(run_job, monkeypatch):
    monkeypatch.setattr(peer_bench, "START_LIMIT_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match="gave no result in time"):
        run_job("time.sleep(60)")


def test_what_a_dead_torch_process_left_in_shared_memory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_bench, "SHARED_MEMORY", tmp_path)
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    names = {
        "old": f"torch_{int(dead.stdout)}_1_0",
        "new": f"torch_{int(dead.stdout)}_1_1",
        "alive": "torch_1_1_1",
    }
    (tmp_path / names["old"]).touch()
    with peer_bench._clean_shared_memory():
        (tmp_path / names["new"]).touch()
        (tmp_path / names["alive"]).touch()
    assert {path.name for path in tmp_path.iterdir()} == {names["old"], names["alive"]}


def test_peers_are_never_installed_over_the_project():
    with pytest.raises(RuntimeError, match="need one of their own"):
        peer_bench.peers_python(Path(sys.prefix))
