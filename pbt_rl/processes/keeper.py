"""Keeper (process reaper) between a child and its parent: collects output, kills descendants.

    parent -- keeper -- child (actor, learner, ...) -- programs that environments start, even daemons

The keeper is the subreaper of the child's descendants: daemons and other orphans become the keeper's children. The
keeper kills all descendants when the child ends, when the parent ends, or when the parent requests this. The keeper
then ends like the child: with its exit code, or by its signal. If the keeper itself is killed, the kernel kills the
child (`PR_SET_PDEATHSIG`), and the parent kills all processes whose environment variable `PBT_RL_CHILD` has the child's
value.

reads        output of the child and its descendants
writes       log of the child; messages to the parent: the child's process id, and at the end the last output
waits for    output, the end of a process, a message from the parent, the end of the parent

The keeper is a separate program without imports from pbt_rl. It starts in a few milliseconds and takes a few megabytes:

    python -I -S keeper.py keep PARENT LABEL LOG SCRATCH COMMAND...
    python -I -S keeper.py bind PARENT SIGNAL COMMAND...

`keep` runs a keeper:

    PARENT    process id of the parent
    LABEL     display name of the child
    LOG       path of the log. If it is empty, the keeper keeps only the last output, in memory
    SCRATCH   folder that is removed at the end, or empty
    COMMAND   command of the child

If LOG is empty, the parent may send LABEL and LOG later.

`bind` runs COMMAND without a keeper, in a new session and with the descriptors 0 to 2. The program gets SIGNAL when its
parent ends. `bind` suffices for a program that has no children, or that ends its children itself.
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
if TYPE_CHECKING:  # `typing` takes longer to load than all other imports here
    from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
LINE = 1
"""Descriptor of the socket to the parent. The keeper's stderr is redirected to this socket, too."""
CHILD, ENDED = b"\0child ", b"\0ended\n"
"""Marks in messages to the parent. Marks begin with a NUL byte, because text contains no NUL. CHILD precedes the id of
the child's process. ENDED precedes the last output, and is sent when all descendants have ended or their time limit is
over.
"""
TAIL_BYTES = 4000
"""Maximum size of the last output that the parent receives."""
FILE_BYTES = 1 << 20
"""Maximum size of a log. A full log is renamed to `LOG.1` and replaces the previous `LOG.1`."""
KEPT_BYTES = 1 << 16
"""Maximum size of the last output that the keeper keeps in memory. A long crash trace fits."""
PIPE_BYTES = 1 << 18
RETRY_SECONDS = 5.0
"""Pause after a failed write to the log, in seconds. Output of this time is missing in the log."""
BATCH_SECONDS = 0.01
"""Pause after a small read, in seconds. The next read then collects many lines."""
TERM_SECONDS = 1.0
"""Time limit for the end of descendants (except nested keepers) after SIGTERM, in seconds. SIGKILL follows."""
KILL_SECONDS = 1.0
"""Time limit for the end of descendants after SIGKILL, in seconds. Some kernel states delay this signal."""
TIDY_SECONDS = 10.0
"""Time limit for a nested keeper to end its descendants and remove its folder, in seconds. SIGKILL follows."""


class BoundedLog:
    """Log file of bounded size for a child's output. Errors of the file are ignored.

    path: path of the file. If it is empty, no file is written. label: written to the file whenever it is opened.
    tail: last output, kept in memory.
    """

    def __init__(self, path: str, label: str) -> None:
        self._path, self._label = path, label
        self._fd = -1
        self._size = 0
        self._retry_at = 0.0
        self.tail = b""

    def write_to(self, path: str, label: str) -> None:
        """Log to this file from now on. First write the output that is kept in memory to the file.

        path, label: as in the constructor.
        """
        self._path, self._label = path, label
        self._append(self.tail)

    def write(self, data: bytes) -> None:
        """Append output to the file, and to the last output in memory."""
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
            while data:  # a write to an almost full file system is partial
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
    """Event loop of a keeper, for one child and its descendants. The keeper's process does nothing else.

    child, parent: process ids.
    output: read end of the child's output pipe.
    line: descriptor of the socket to the parent.
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
        """Run until all descendants have ended, or until the time limits for their end are over.

        Return the child's status, as `os.waitpid` returns it, or SIGKILL if the child has not ended.
        """
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
        """Receive label and log path from the parent. Return False if the parent requests the child's end instead."""
        try:
            said = os.read(self._line, 1 << 16)
        except OSError:
            said = b""
        if said:
            label, _, path = os.fsdecode(said).partition("\n")
            self._log.write_to(path, f"{label}, process {self._child}")
        return bool(said)

    def _read(self) -> int:
        """Read output of the child from the pipe, and log it. Return the number of bytes."""
        try:
            data = os.read(self._output, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not data:  # all write ends are closed
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._output)
        else:
            self._log.write(data)
        return len(data)

    def _reap(self) -> bool:
        """Reap all ended child processes of the keeper. Return True if another child process still runs."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._child:
                    self._status = status
        return False

    def _end_all(self) -> None:
        """Kill every descendant. Give up after the time limits.

        Only direct children of the keeper get a signal, because the ids of these children cannot be reused before the
        keeper reaps them. The children of an ended child become children of the keeper. Nested keepers end by
        themselves, because their parents have ended.
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
                    with contextlib.suppress(OSError):  # another user owns the process
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)  # a stopped process does not handle SIGTERM
            self._read()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def _watch(parent: int) -> int:
    """Return a descriptor that becomes readable when the parent has ended."""
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        fd = -1
    if fd < 0 or os.getppid() != parent:
        fd, other = os.pipe()
        os.close(other)
    return fd


def _children() -> list[int]:
    """Return the ids of this process's direct children."""
    found, ours = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # Split after the last ")", because the process name in parentheses may contain any character.
                if int(file.read().rpartition(b")")[2].split()[1]) == ours:
                    found.append(int(name))
    return found


def _is_keeper(pid: int) -> bool:
    """True if a process is a keeper."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"\0%s\0keep\0" % os.fsencode(__file__) in file.read()
    return False


def _prctl(option: int, argument: int | bytes) -> None:
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    ctypes.CDLL(None).prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def become_keeper() -> None:
    """Show this process as `pbt_rl-keeper` in the process list, and make it the subreaper of its descendants."""
    # The name has no blank, because Python splits /proc/self/stat at blanks.
    _prctl(_PR_SET_NAME, b"pbt_rl-keeper")
    adopt_orphans()


def adopt_orphans() -> None:
    """Make this process the subreaper of its descendants: orphans become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send the signal `number` to this process when its parent ends.

    Exit immediately if the parent has already ended. parent: expected id of the parent process.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def end_like(status: int) -> NoReturn:
    """End this process as the child ended: with the same exit code, or by the same signal (without a core file).

    status: the child's status, as `os.waitpid` returns it.
    """
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _prctl(_PR_SET_DUMPABLE, 0)
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


def _close_all_but(*kept: int) -> None:
    """Close all open descriptors except `kept`.

    `os.closerange` could take minutes on Linux before 5.9, if the limit of open files is large.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _become(command: list[str]) -> NoReturn:
    """Replace this process by a command (exec)."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, but the command must not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(1)


def _keep(parent: int, label: str, log_path: str, scratch: str, command: list[str]) -> NoReturn:
    """Start a child and run its keeper. Signals that the parent has blocked stay blocked in the child."""
    become_keeper()
    output, printing = os.pipe()
    with contextlib.suppress(OSError):  # the user's limit of pipe memory may be reached
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(keeper)
        os.dup2(printing, 1)
        os.dup2(printing, 2)
        _become(command)
    _close_all_but(0, LINE, 2, output)
    with contextlib.suppress(OSError):
        os.write(LINE, CHILD + b"%d\n" % child)
    if scratch:  # imported before the child ends, because the import takes time
        import shutil  # noqa: PLC0415 - it takes longer to load than all other imports here
    log = BoundedLog(log_path, f"{label}, process {child}")
    status = Keeper(child, output, LINE, parent, log).serve()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.write(LINE, ENDED + log.tail[-TAIL_BYTES:])
    end_like(status)


def _bind(parent: int, number: int, command: list[str]) -> NoReturn:
    """Replace this process by a command that gets the signal `number` when the parent ends."""
    end_with(parent, number)
    if os.getsid(0) != os.getpid():
        os.setsid()  # Ctrl-C is not sent to a new session
    _close_all_but(0, 1, 2)
    _become(command)


def main() -> NoReturn:
    """Run the subcommand `keep` or `bind` with the arguments of the command line."""
    use, parent, *rest = sys.argv[1:]
    if use == "bind":
        number, *command = rest
        _bind(int(parent), int(number), command)
    label, log_path, scratch, *command = rest
    _keep(int(parent), label, log_path, scratch, command)


if __name__ == "__main__":
    main()
