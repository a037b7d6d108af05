"""After every test nothing of ours may be left: no process, nothing in /dev/shm."""

import os
import re
import secrets
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers.disks import FaultyDisk
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parent.parent
SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_SECONDS = 20.0
MARK = f"PBT_RL_TESTS={secrets.token_hex(8)}"
"""In the environment of every process that a test starts, and of theirs: others run beside us."""


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write tests/cli/options.txt and tests/cli/mistakes.txt anew, where their tests run",
    )


def pytest_configure():
    os.environ.update([MARK.split("=")])
    # Behind `nohup ... &` SIGINT is ignored, also in all processes that tests start. Some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Workers of `-n auto`: one per CPU, at least two, at most eight."""
    from pbt_rl.plan.machine import available_cpus

    return min(max(2, available_cpus()), 8)


@pytest.fixture(scope="session", autouse=True)
def adopts_no_processes():
    """Keep `main()`, which some tests call, from making pytest the parent of other tests' processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pbt_rl.cli.adopt_orphans", lambda: None)
        yield


@pytest.fixture(autouse=True)
def nothing_left():
    before = shared_memory()
    yield
    if wait_until(lambda: not (our_processes() or unused(before)), TIMEOUT_SECONDS, 0.05):
        return
    processes = our_processes()
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    pytest.fail(f"left behind: processes {processes}, in /dev/shm {unused(before)}")


NATIVE_CRASH = re.compile(r"terminate called|Fatal Python error|^Aborted", re.MULTILINE)


@pytest.fixture(autouse=True)
def no_native_crash(request):
    """No log of a run may hold the last words of a process that aborted, also if the run itself ended well."""
    yield
    folder = request.node.funcargs.get("tmp_path")
    for log in [] if folder is None else folder.glob("**/logs/*.log"):
        if NATIVE_CRASH.search(text := log.read_text(errors="replace")):
            pytest.fail(f"{log.name} of a run holds a native crash:\n{text[-2000:]}")


def our_processes():
    """Process id -> command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and MARK.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:  # it has just ended, or belongs to another user
            continue
    return found


def shared_memory():
    """Inode -> name of what lies in /dev/shm."""
    found = {}
    for path in SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ():
        try:
            found[path.stat().st_ino] = path.name
        except OSError:
            continue
    return found


def unused(before):
    """New files that no process that we can see maps: what other programs use meanwhile is theirs.

    Compared by inode, since a semaphore is mapped under another name than its file's.
    """
    new = {inode: name for inode, name in shared_memory().items() if inode not in before}
    if not new:
        return set()
    mapped = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped |= {int(line.split()[4]) for line in path.read_text().splitlines()}
        except OSError:
            continue
    return {name for inode, name in new.items() if inode not in mapped}


@pytest.fixture
def pbt_rl(monkeypatch, tmp_path, capsys):
    """Call the command in an empty folder: returns exit code, output, errors."""
    from pbt_rl.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call


@pytest.fixture
def faulty_disk(tmp_path, monkeypatch):
    """The disk under `tmp_path`, which is full once its `room` is set."""
    return FaultyDisk(tmp_path, monkeypatch)


@pytest.fixture
def cuda(monkeypatch):
    """Answers of the calls that a learner makes: name -> exception to raise, or what was given."""
    import torch

    answers = {}

    def call(name):
        def made_up(value=None, **_):
            if isinstance(answers.get(name), Exception):
                raise answers[name]
            answers[name] = value
            return torch.zeros(1)

        return made_up

    monkeypatch.setattr(torch.cuda, "set_device", call("set_device"))
    monkeypatch.setattr(torch, "ones", call("ones"))
    for name in ("deterministic", "benchmark", "allow_tf32"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "mine")
    yield answers
    torch.use_deterministic_algorithms(False)
