"""Lock on a run's folder, because only one process may write a run.

The kernel holds the lock (`flock`) and releases it at the end of the process, even if the process is killed.

`--overwrite` renames the folder of the old run. The old run is deleted when the new run *reports*, which means: when a
learner sends the first message about the progress of its members.

    runs/.demo.new.1f3a        new folder; renamed to runs/demo when it is locked and contains a config
    runs/.demo.replaced.1f3a   old run; restored if the new run ends before it reports

If the process is killed, these folders may remain. The next run with this name deletes an unlocked new folder, and
prints a line about the old run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import secrets
import shutil
import socket
import threading
import time
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.record.append import reason
from pbt_rl.record.folder import RunFolder, made_name

FILE = ".lock"
TIMEOUT_SECONDS = 1.0
"""Time limit of the attempts to lock a folder. Several attempts are needed, because `is_held` in another process
acquires the lock for a moment."""
_MAX_BYTES = 400


class Held(Exception):  # noqa: N818 - describes the state
    """Another process holds the lock. The message identifies this process, if it is known."""


class FolderLock:
    """Lock of this process on a folder: `flock` on the file `.lock`, which contains process id and host name.

    Programs that this process starts do not inherit the lock, but a process forked without `exec` does. The lock
    survives a rename of the folder. On a file system without locks, `supported` is False, and nothing is locked.
    """

    def __init__(self, folder: Path) -> None:
        """Acquire the lock. Raises OSError, or Held if another process still holds the lock after TIMEOUT_SECONDS."""
        self._path = folder / FILE
        self.supported = True
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._take():
            if time.monotonic() >= deadline:
                raise Held(_holder(folder))
            time.sleep(0.01)
        try:
            text = f"process {os.getpid()} of {socket.gethostname()}"
            os.pwrite(self._file, text.encode(), 0)
            os.ftruncate(self._file, len(text.encode()))
        except OSError:
            self.release()
            raise

    def _take(self) -> bool:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            self.supported = _lock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return True
        except (BlockingIOError, FileNotFoundError):  # the lock is held, or the folder was renamed
            pass
        except OSError:
            os.close(self._file)
            raise
        os.close(self._file)
        return False

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_held(folder: Path) -> bool | None:
    """Check whether a process holds the lock of a folder. False if the lock file cannot be opened.

    None if the file system does not support locks.
    """
    try:
        file = _open_to_read(folder)
    except OSError:
        return False
    try:
        return False if _lock(file, fcntl.LOCK_SH) else None
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def _holder(folder: Path) -> str:
    """Return the name of the process that holds the lock, from the lock file."""
    try:
        file = _open_to_read(folder)
    except OSError:
        return "another process"
    try:
        return os.read(file, _MAX_BYTES).decode(errors="replace") or "another process"
    finally:
        os.close(file)


def _open_to_read(folder: Path) -> int:
    return os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _lock(file: int, kind: int) -> bool:
    """Lock a file without blocking. Return False if the file system does not support locks.

    Raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # the error code depends on the file system
        return False
    return True


NEW, REPLACED = "new", "replaced"
_RETRY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT)


class LockedRun:
    """Folder of a run that only this process writes, until `release` or the end of the process."""

    def __init__(self, config: Config, folder: RunFolder, lock: FolderLock, *, existing: bool) -> None:
        self.config, self.folder = config, folder
        """The config contains the final name of the run, even if the user gave no name."""
        self.existing = existing
        """True for an existing run, whose files are unchanged. False for a new folder, even if it replaces a run."""
        self.notes: list[str] = []
        """Lines to print for the user."""
        if not lock.supported:
            self.notes.append(
                f"{folder.path} is on a file system without locks: make sure that no other process writes this run"
            )
        self.made_out = False
        """True if the parent folder (--out) was created for this run."""
        self._locks = [lock]
        self._aside: Path | None = None
        self._started = False
        self._deleting: threading.Thread | None = None

    def set_aside(self, aside: Path, lock: FolderLock) -> None:
        """Set the folder of the replaced run, which `started` deletes. lock: lock on this folder."""
        self._aside = aside
        self._locks.append(lock)

    def started(self) -> None:
        """Delete the replaced run. Safe to call again.

        Call this when a learner of the new run first reports the progress of its members.
        """
        self._started = True
        if self._aside is not None:
            # Use a thread, because the deletion of a long run may take seconds.
            self._deleting = threading.Thread(target=_delete, args=(self._aside,), daemon=True)
            self._deleting.start()
            self._aside = None

    def release(self, *, failed: bool) -> str:
        """Release the locks. Safe to call twice. Return an error message, or an empty text.

        If `started` was not called, the replaced run is restored.
        failed: True if an error stopped the run. The folder of a new run is then deleted, unless `started` was called.
        """
        problem = ""
        try:
            if self._aside is not None:
                _delete(self.folder.path)
                self._aside.rename(self.folder.path)
            elif failed and not self.existing and not self._started:
                _delete(self.folder.path)
                if self.made_out:
                    with contextlib.suppress(OSError):  # another run already uses the parent folder
                        self.folder.path.parent.rmdir()
        except OSError as error:
            where = f"; the run that was to be replaced is in {self._aside}" if self._aside else ""
            problem = f"{self.folder.path} could not be restored ({reason(error)}){where}"
        self._aside, self._started = None, True
        if self._deleting is not None:
            self._deleting.join()
        for lock in self._locks:
            lock.release()
        return problem


def lock_run_folder(config: Config) -> LockedRun:
    """Lock the folder of a run. If the run does not exist, create its folder with a config.

    With `overwrite`, rename the folder of an existing run, and create a new folder.
    Raises ConfigError, for example if another process writes the run, if the path exists but is not a run, or if the
    folder cannot be written. The files of an existing run are then unchanged.
    """
    # Path.exists raises for an invalid path and for a path without read permission.
    made_out = not os.path.exists(config.out)  # noqa: PTH110
    if not made_out and not config.out.is_dir():
        raise ConfigError(f"--out {config.out} cannot be written: Not a directory")
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        locked = None
        while locked is None:
            named = dataclasses.replace(config, name=config.name or made_name(config))
            folder = RunFolder(config.out / str(named.name))
            notes = _recover(folder.path)
            locked = _lock_named(named, folder)
    except OSError as error:
        if made_out:
            with contextlib.suppress(OSError):
                config.out.rmdir()
        raise ConfigError(f"--out {config.out} cannot be written: {error.strerror or error}") from error
    locked.notes += notes
    locked.made_out = made_out
    return locked


def _lock_named(config: Config, folder: RunFolder) -> LockedRun | None:
    """Lock or create the folder of a named run.

    Raises ConfigError if the name cannot be used: the folder is not a run, another process writes to it, or
    --overwrite would replace a symbolic link. Raises OSError if the folder cannot be written.
    Return None if another process creates or replaces the folder at the same time. The caller then tries again.
    """
    path, name = folder.path, config.name
    if not os.path.lexists(path):
        return _make(config, folder)
    if not folder.is_run:
        raise ConfigError(
            f"--name {name}: {path} exists and is not a run (it has no config.json); choose another name, or remove it"
        )
    if config.overwrite and path.is_symlink():
        raise ConfigError(
            f"--overwrite: {path} is a symbolic link; remove it yourself, or choose another name"
        )
    try:
        lock = FolderLock(path)
    except Held as held:
        raise ConfigError(
            f"--name {name}: {path} is being written by {held}; choose another name, or end that process first"
        ) from held
    except FileNotFoundError:  # another process replaces the run
        return None
    if not config.overwrite:
        return LockedRun(config, folder, lock, existing=True)
    try:
        aside = path.rename(_hidden(path, REPLACED))
        try:
            locked = _make(config, folder)
        except OSError:
            aside.rename(path)
            raise
    except OSError:
        lock.release()
        raise
    if locked is None:
        with contextlib.suppress(OSError):  # another process has created the run
            aside.rename(path)
        lock.release()
    else:
        locked.set_aside(aside, lock)
    return locked


def _make(config: Config, folder: RunFolder) -> LockedRun | None:
    """Create a folder with lock and config under a hidden name, and rename the folder to the name of the run.

    Return None if another process creates the run, or deletes this folder, at the same time. The caller then tries
    again. Raises OSError if the folder cannot be created for another reason.
    """
    made = _hidden(folder.path, NEW)
    made.mkdir()
    lock: FolderLock | None = None
    try:
        lock = FolderLock(made)
        # Without --overwrite, because config.json may be given as --config, which must not delete this run.
        RunFolder(made).write_config(dataclasses.replace(config, overwrite=False))
        RunFolder(made).write_origin(folder.path)
        made.rename(folder.path)
    except (OSError, Held) as error:
        if lock is not None:
            lock.release()
        _delete(made)
        # Another process has created the run, or has deleted this new folder before it was locked.
        if isinstance(error, Held) or error.errno in _RETRY:
            return None
        raise
    return LockedRun(config, folder, lock, existing=False)


def _recover(path: Path) -> list[str]:
    """Delete unfinished new folders of killed processes. Return lines for the user about replaced runs."""
    for left in _siblings(path, NEW):
        _delete_unlocked(left)
    return [
        f"{aside} contains an older run of this name: rename or remove this folder"
        for aside in _siblings(path, REPLACED)
        if is_held(aside) is False
    ]


def _delete_unlocked(made: Path) -> None:
    """Delete a new folder that no process has locked. A folder without a lock file is not deleted.

    This function holds the lock during the deletion. Otherwise a process that is creating this folder could lock it
    meanwhile.
    """
    try:
        file = os.open(made / FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # no lock file yet
        return
    try:
        if _lock(file, fcntl.LOCK_EX):
            _delete(made)
    except BlockingIOError:
        pass
    finally:
        os.close(file)


def _siblings(path: Path, kind: str) -> list[Path]:
    begin = f".{path.name}.{kind}."
    return sorted(p for p in path.parent.iterdir() if p.name.startswith(begin) and p.is_dir())


def _hidden(run: Path, kind: str) -> Path:
    return run.with_name(f".{run.name}.{kind}.{secrets.token_hex(4)}")


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
