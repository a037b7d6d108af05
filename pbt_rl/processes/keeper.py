"""The keeper of a child: a small process between it and its parent. Keeps what it prints, ends what it starts.

    parent -- keeper -- child (actor, learner, ...) -- what its environments start, however they detach

The keeper is the subreaper of the child's descendants: one that leaves its parent (daemon, double fork, own session)
becomes the keeper's, so that nothing escapes. When the child ends, or the parent orders it or ends, all of them are
ended, and the keeper ends with the child's exit code. If the keeper itself is killed, the kernel kills the child
(`PR_SET_PDEATHSIG`), and the parent ends by `PBT_RL_CHILD` in their environment what the child had started.

consumes     what the child and its descendants print, by a pipe that it never leaves full for long
produces     the child's log; on the line to its parent, the child's id and at last the end of what was printed
waits for    output, the end of a process, a word on the line, the end of the parent

It is a program of its own that imports nothing of ours, so that it takes few milliseconds and megabytes:

    python -I -S keeper.py keep PARENT LABEL LOG SCRATCH COMMAND...
    python -I -S keeper.py bind PARENT SIGNAL COMMAND...

The first is a keeper. PARENT: process id. LABEL: name of the child, for people. LOG: path, or empty to keep only the
end of the output, in memory; both may come later, on the line. SCRATCH: a folder that is removed once nothing of the
child is left, or empty. COMMAND: of the child.

The second only becomes COMMAND, in a session of its own, with no descriptors but the first three: a program that gets
SIGNAL when its parent ends. That suffices for one that starts no others, or ends them itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module takes longer to load than all others here
    from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
LINE = 1
"""Descriptor of the socket to the parent. The keeper's stderr goes there, too: warnings, and what libraries print."""
CHILD, ENDED = b"\0child ", b"\0ended\n"
"""Marks on the line, which no text contains. The child's id follows the first; the end of the output the second, once
nothing of the child is left."""
TAIL_BYTES = 4000
"""End of the output that goes to the parent."""
FILE_BYTES = 1 << 20
"""A log of this size is renamed to `.1`, over the one before."""
KEPT_BYTES = 1 << 16
"""End of the output that is kept: a crash's stack may be long."""
PIPE_BYTES = 1 << 18
RETRY_SECONDS = 5.0
"""Pause after a failure to write the log."""
BATCH_SECONDS = 0.01
"""Pause after a little output, so that one reading takes many lines."""
TERM_SECONDS = 1.0
"""Descendants have this long to end after SIGTERM."""
KILL_SECONDS = 1.0
"""And this long after SIGKILL: some states of the kernel hold a process longer."""
TIDY_SECONDS = 10.0
"""A keeper among them this long, to end its own and to remove their folder."""


class BoundedLog:
    """A file that takes what a child prints, up to a size, and never raises. `tail` is the end of all output."""

    def __init__(self, path: str, label: str) -> None:
        self._path, self._label = path, label
        self._fd = -1
        self._size = 0
        self._retry_at = 0.0
        self.tail = b""

    def write_to(self, path: str, label: str) -> None:
        """Write to a file from now on, and to it the end of what was taken before."""
        self._path, self._label = path, label
        self._append(self.tail)

    def write(self, data: bytes) -> None:
        """Take output, some of it at least."""
        self.tail = (self.tail + data[-KEPT_BYTES:])[-KEPT_BYTES:]
        self._append(data)

    def _append(self, data: bytes) -> None:
        if not (self._path and data) or time.monotonic() < self._retry_at:
            return
        try:
            if self._fd < 0:
                self._open()
            if self._size and self._size + len(data) > FILE_BYTES:
                os.close(self._fd)
                self._fd = -1
                os.replace(self._path, f"{self._path}.1")
                self._open()
            while data:  # a file system that becomes full takes a part
                written = os.write(self._fd, data)
                self._size += written
                data = data[written:]
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o666)
        began = f"--- {self._label}, {time.strftime('%Y-%m-%d %H:%M:%S')} ---\n".encode()
        self._size = os.fstat(self._fd).st_size + os.write(self._fd, began)


class Keeper:
    """Serves one child until nothing of it is left.

    output: read end of the pipe that it prints to. line: descriptor on which the parent orders the end. The process
    that makes it does nothing else.
    """

    def __init__(self, child: int, output: int, line: int, parent: int, log: BoundedLog) -> None:
        self._child, self._output, self._line, self._log = child, output, line, log
        self._status: int | None = None
        os.set_blocking(output, False)
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        for fd in (self._output, self._wake, line, _watch(parent)):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> int:
        """Return the child's status, as `waitpid` gives it."""
        self._reap()
        while self._status is None:
            ready = {fd for fd, _ in self._poll.poll()}
            if ready - {self._output, self._wake, self._line} or (self._line in ready and not self._told()):
                os.kill(self._child, signal.SIGKILL)
                break
            if self._output in ready and 0 < self._read() < PIPE_BYTES // 2:
                time.sleep(BATCH_SECONDS)
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
        self._end_all()
        while self._read() > 0:
            pass
        return signal.SIGKILL if self._status is None else self._status

    def _told(self) -> bool:
        """Take the label and the log of a child that is told late what it is; return whether there are any."""
        try:
            said = os.read(self._line, 1 << 16)
        except OSError:
            said = b""
        if said:
            label, _, path = os.fsdecode(said).partition("\n")
            self._log.write_to(path, f"{label}, process {self._child}")
        return bool(said)

    def _read(self) -> int:
        """Take what the pipe holds; return its size."""
        try:
            data = os.read(self._output, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not data:  # closed by all
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._output)
        else:
            self._log.write(data)
        return len(data)

    def _reap(self) -> bool:
        """Take note of every process that has ended; return whether any is left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._child:
                    self._status = status
        return False

    def _end_all(self) -> None:
        """End every descendant.

        Only children of ours are signalled, whose ids nobody else can have. As they end, theirs become ours. Keepers
        end by themselves, as their parents are gone.
        """
        began, pause = time.monotonic(), 0.001
        asked: set[int] = set()
        keepers: set[int] = set()
        while self._reap():
            passed, children = time.monotonic() - began, _children()
            keepers |= {pid for pid in children if pid not in asked and _is_keeper(pid)}
            if passed > KILL_SECONDS + (TERM_SECONDS if keepers.isdisjoint(children) else TIDY_SECONDS):
                return
            for pid in children:
                late = passed > (TIDY_SECONDS if pid in keepers else TERM_SECONDS)
                if late or pid not in asked:
                    asked.add(pid)
                    with contextlib.suppress(OSError):  # another user's: nothing can be done
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # one that is stopped can do nothing
            self._read()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def _watch(parent: int) -> int:
    """Return a descriptor that is readable once the parent has ended."""
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        fd = -1
    if fd < 0 or os.getppid() != parent:
        fd, other = os.pipe()
        os.close(other)
    return fd


def _children() -> list[int]:
    """Return the ids of this process's children."""
    found, ours = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything.
                if int(file.read().rpartition(b")")[2].split()[1]) == ours:
                    found.append(int(name))
    return found


def _is_keeper(pid: int) -> bool:
    """Whether a process keeps a child, which it ends when its parent has ended, and whose folder it removes."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"\0%s\0keep\0" % os.fsencode(__file__) in file.read()
    return False


def _prctl(option: int, argument: int | bytes) -> None:
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    ctypes.CDLL(None).prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def become_keeper() -> None:
    """Let descendants whose parents end become children of this process."""
    _prctl(_PR_SET_NAME, b"pbt_rl-keeper")  # Python takes the word after a blank for the state of the process
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when its parent ends; end it now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_like(status: int) -> NoReturn:
    """End with the exit code or the signal of the child, without a core file of our own."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _prctl(_PR_SET_DUMPABLE, 0)
        with contextlib.suppress(OSError):  # SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


def _become(command: list[str]) -> NoReturn:
    """Run a command in this process."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(1)


def _keep(parent: int, label: str, log_path: str, scratch: str, command: list[str]) -> NoReturn:
    """Keep one child. Its signals stay blocked as the parent has blocked them."""
    become_keeper()
    output, printing = os.pipe()
    with contextlib.suppress(OSError):  # a user has so many pages for all pipes
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(keeper)
        os.dup2(printing, 1)
        os.dup2(printing, 2)
        _become(command)
    for name in os.listdir("/proc/self/fd"):  # what the child has inherited is only the child's
        if int(name) not in (0, LINE, 2, output):
            with contextlib.suppress(OSError):
                os.close(int(name))
    with contextlib.suppress(OSError):
        os.write(LINE, CHILD + b"%d\n" % child)
    if scratch:  # at once: there may be little time at the end
        import shutil  # noqa: PLC0415 - it takes longer to load than all others here
    log = BoundedLog(log_path, f"{label}, process {child}")
    status = Keeper(child, output, LINE, parent, log).serve()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.write(LINE, ENDED + log.tail[-TAIL_BYTES:])
    end_like(status)


def _bind(parent: int, number: int, command: list[str]) -> NoReturn:
    """Become a program that gets a signal when its parent ends."""
    end_with(parent, number)
    if os.getsid(0) != os.getpid():
        os.setsid()  # Ctrl-C is not for it
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _become(command)


def main() -> NoReturn:
    """Do what the command line says."""
    use, parent, *rest = sys.argv[1:]
    if use == "bind":
        number, *command = rest
        _bind(int(parent), int(number), command)
    label, log_path, scratch, *command = rest
    _keep(int(parent), label, log_path, scratch, command)


if __name__ == "__main__":
    main()
