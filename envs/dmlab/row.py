"""Process of one Lab: `python -m pbt_rl.envs.dmlab.row`, started and controlled by `lab_processes.py`.

Only this module imports `deepmind_lab`. This module uses the low-level API, because the dm_env wrapper requests an
observation after an episode's end, and the engine rejects this request.

    receives   requests: ("try", scripts), ("begin", script, seed), ("step", action), ("fill", script, seed, steps),
               ("close",)
    sends      an answer to each request except "close": ("done", result) or ("failed", message)
    writes     observations to shared memory

The engine leaks 4 descriptors and 3 to 4 MB for each Lab (google-deepmind/lab, issue 135). Therefore the process
restarts its program (exec) after MOST_LABS Labs. Process id, socket, clock and log stay the same.

`LevelCache` is a cache of compiled maps on disk, shared by all processes. The engine's key of a map is the MD5 of the
map's text, so an entry never changes. Each file contains a map and its SHA-256, and is written atomically
(`os.replace`). If a file is truncated, the disk is full or a permission is missing, the engine compiles the map without
an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import mmap
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pbt_rl.processes.child import PARENTS_SIGNALS, leave_to_parent
from pbt_rl.processes.paths import working_directory_last

from ..spaces import hash_words
from .levels import Pressed

DIGEST_BYTES = 32
KEEP_SHARE = 0.9
"""Share of the size limit to which a full folder is reduced. With a share of 1, every new map would cause a removal."""
SWEEP_SECONDS = 60.0
"""Seconds after which the folder's size is checked again, when a map is written. If the known maps exceed the size
limit, the folder is checked at each written map."""
STALE_SECONDS = 3600.0
"""Age from which a temporary file is removed, because a file of this age is from a killed process."""
_DRAFT = ".draft-"


class LevelCache:
    """Cache folder of compiled maps. The engine calls `fetch` and `write` in a Lab's constructor, reset or step.

    limit_bytes: maximum size of the folder. Many concurrent writers may exceed this size for a while.
    hits, misses, written: numbers of maps that were found, not found, and written.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self._limit = folder, limit_bytes
        self._known_bytes = 0
        self._next_sweep = 0.0
        self.hits = self.misses = self.written = 0

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy a map from the cache to `pk3_path`. Return True if the map was cached.

        A corrupt cache file is removed. Errors of the file system count as a missing map.
        key: the engine's key of the map.
        """
        path = self._path(key)
        try:
            data = path.read_bytes()
            found = hashlib.sha256(data[:-DIGEST_BYTES]).digest() == data[-DIGEST_BYTES:]
            if found:
                Path(pk3_path).write_bytes(data[:-DIGEST_BYTES])
                with contextlib.suppress(OSError):  # a read-only folder
                    os.utime(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            found = False
            with contextlib.suppress(OSError):
                Path(pk3_path).unlink(missing_ok=True)
        self.hits += found
        self.misses += not found
        return found

    def write(self, key: str, pk3_path: str) -> None:
        """Copy the map at `pk3_path` into the cache under the engine's key. Errors of the file system are ignored."""
        draft = None
        try:
            data = Path(pk3_path).read_bytes()
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, draft = tempfile.mkstemp(prefix=_DRAFT, dir=path.parent)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.write(hashlib.sha256(data).digest())
            Path(draft).replace(path)
        except OSError:
            if draft is not None:
                with contextlib.suppress(OSError):
                    Path(draft).unlink(missing_ok=True)
            return
        self.written += 1
        self._known_bytes += len(data) + DIGEST_BYTES
        if self._known_bytes > self._limit or time.monotonic() >= self._next_sweep:
            self._sweep()

    def _path(self, key: str) -> Path:
        """Return the file of a key, in one of 256 subfolders.

        The name of the file is a hash of the key, so that no key leads out of the folder.
        """
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:40]}.map"

    def _sweep(self) -> None:
        """Remove the least recently used maps if the folder exceeds its size limit.

        Do nothing while another process has the lock.
        """
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        with contextlib.suppress(OSError), (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > self._limit:
                for _, size, path in files:
                    if total <= KEEP_SHARE * self._limit:
                        break
                    path.unlink(missing_ok=True)
                    total -= size
            self._known_bytes = total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use, bytes, path) of every map. Remove old temporary files."""
        for path in self.folder.glob("??/*"):
            try:
                facts = path.stat()
                if not path.name.startswith(_DRAFT):
                    yield facts.st_mtime, facts.st_size, path
                elif time.time() - facts.st_mtime > STALE_SECONDS:
                    path.unlink(missing_ok=True)
            except OSError:  # removed by another process
                continue


PICTURE = (3, 72, 96)
WORDS = 16
FRAME_SKIP = 4
"""Engine frames per step, at 60 frames per second."""
ROW_BYTES = 3 * 72 * 96 + 4 * WORDS
MOST_LABS = 20
"""If the program has made this number of Labs (instances of the engine), it restarts before an episode that needs
another Lab. A restart takes half a second of CPU, including a new Lab and its first reset.
"""
MAX_MESSAGE_BYTES = 1 << 16
MAX_ERROR_CHARACTERS = 8000
_MODULE = "deepmind_lab"
_PICTURE, _TEXT, _LEFT = "RGB_INTERLEAVED", "INSTR", "FRAMES_REMAINING_AT_60"
_LIMIT_SLACK = 1.0
"""Number of frames. An end counts as an end by the time limit if at most FRAME_SKIP + _LIMIT_SLACK frames were left
before the last step.
"""


@dataclass(frozen=True)
class RowSetup:
    """First message to a row's process.

    config: the engine's settings of every Lab.
    of_level: level script -> further settings of this level.
    renderer: "software" or "hardware".
    actions: the actions of the vector env, in the order of their indices.
    cache_bytes: maximum size of the map cache.
    memory_fd: file descriptor of the shared memory of all rows.
    row: index of the row in the vector env.
    """

    config: Mapping[str, str]
    of_level: Mapping[str, Mapping[str, str]]
    renderer: str
    actions: tuple[Pressed, ...]
    cache_folder: str
    """Folder of the map cache. Empty: no cache."""
    cache_bytes: int
    memory_fd: int
    row: int


def send(line: socket.socket, message: object) -> None:
    """Pickle a message and send it as one packet. Raises ConnectionError if the peer has ended."""
    line.send(pickle.dumps(message), socket.MSG_NOSIGNAL)


def receive(line: socket.socket) -> Any:
    """Wait for the next message. Raises EOFError or ConnectionError if the peer has ended."""
    packet = line.recv(MAX_MESSAGE_BYTES)
    if not packet:
        raise EOFError
    return pickle.loads(packet)


def row_arrays(memory: mmap.mmap, row: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return views of a row's picture and words in the vector env's shared memory.

    Picture: uint8 [3, 72, 96], channels first. Words: int32 [16], the hashed words of the instruction.
    """
    begin = row * ROW_BYTES
    picture: NDArray[np.uint8] = np.ndarray(PICTURE, np.uint8, buffer=memory, offset=begin)
    words: NDArray[np.int32] = np.ndarray((WORDS,), np.int32, buffer=memory, offset=begin + picture.nbytes)
    return picture, words


def load_module() -> Any:
    """Import `deepmind_lab`, or load its library directly if the import fails.

    The package's `__init__` loads only this library, but needs Python up to 3.11, setuptools below 82, six and dm_env.
    The library has none of these requirements. The library must be loaded under the package's name, because it looks
    itself up by this name.
    """
    try:
        return importlib.import_module(_MODULE)
    except ImportError:
        package = importlib.util.find_spec(_MODULE)
        library = Path(package.origin if package and package.origin else "").with_name(f"{_MODULE}.so")
        if not library.is_file():
            raise
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, str(library))
    spec = importlib.util.spec_from_file_location(_MODULE, library, loader=loader)
    assert spec is not None, "there is a loader"
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Game:
    """Owner of a row's Lab (instance of the engine).

    A Lab is kept for further episodes of its level. An episode of another level gets a new Lab.

    made: number of Labs so far.
    """

    def __init__(self, setup: RowSetup) -> None:
        self._module = load_module()
        self._setup = setup
        self._picture, self._words = row_arrays(mmap.mmap(setup.memory_fd, 0), setup.row)
        self._cache = LevelCache(Path(setup.cache_folder), setup.cache_bytes) if setup.cache_folder else None
        self._script = ""
        self._lab: Any = None
        self.made = 0
        self._actions: list[NDArray[np.intc]] = []
        self._frames_left: float | None = None

    def try_levels(self, scripts: list[str]) -> None:
        """Make a Lab of each script. Invalid names and settings raise the engine's error."""
        for script in scripts:
            self._open(script)
        self.close()

    def worn_out_by(self, script: str) -> bool:
        """Return True if this level needs a new engine (Lab) and the row has already made MOST_LABS engines."""
        return script != self._script and self.made >= MOST_LABS

    def begin_episode(self, script: str, seed: int) -> None:
        """Begin an episode of a level, and write its first observation to the shared memory."""
        if script != self._script:
            self._open(script)
        self._lab.reset(seed=seed)
        self._observe()

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Take a step. Return (reward, True if the episode has ended, True if the time limit ended the episode).

        action: index in `RowSetup.actions`.

        After the end the engine has no observation, so the last observation stays in memory. An end by the time limit
        is inferred from the engine's counter of the frames left. An episode of a level without this counter never
        counts as ended by the time limit.
        """
        reward = float(self._lab.step(self._actions[action], num_steps=FRAME_SKIP))
        if self._lab.is_running():
            self._observe()
            return reward, False, False
        left = self._frames_left
        return reward, True, left is not None and left <= FRAME_SKIP + _LIMIT_SLACK

    def fill(self, script: str, seed: int, steps: int) -> tuple[int, int]:
        """Begin an episode and take random steps, which adds missing maps to the cache.

        Return (number of maps found in the cache, number of maps built). steps: maximum number of random steps.
        """
        assert self._cache is not None, "filling requires a cache"
        hits, misses = self._cache.hits, self._cache.misses
        self.begin_episode(script, seed)
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            if self.step(int(rng.integers(len(self._actions))))[1]:
                break
        return self._cache.hits - hits, self._cache.misses - misses

    def close(self) -> None:
        """Close the Lab if it exists."""
        if self._lab is not None:
            self._lab.close()
        self._lab, self._script = None, ""

    def _open(self, script: str) -> None:
        self.close()
        wanted = [_PICTURE, _TEXT, _LEFT]
        while self._lab is None:
            try:
                self._lab = self._module.Lab(
                    script,
                    wanted,
                    {**self._setup.config, **self._setup.of_level.get(script, {})},
                    renderer=self._setup.renderer,
                    level_cache=self._cache,
                )
            except ValueError as error:  # some levels have no instruction or no frame counter
                missing = next((name for name in wanted[1:] if name in str(error)), None)
                if missing is None:
                    raise
                wanted = [name for name in wanted if name != missing]
        self.made += 1
        self._script = script
        self._actions = [_pressed(self._lab.action_spec(), pressed) for pressed in self._setup.actions]

    def _observe(self) -> None:
        seen = self._lab.observations()
        self._picture[:] = np.moveaxis(seen[_PICTURE], -1, 0)
        hash_words(seen.get(_TEXT, ""), self._words)
        # 0 means that the level has no time limit. With a limit, the episode ends before the counter reaches 0.
        self._frames_left = float(seen[_LEFT][0]) if _LEFT in seen and seen[_LEFT][0] > 0 else None


def _pressed(spec: list[dict[str, Any]], pressed: Pressed) -> NDArray[np.intc]:
    """Return an action in the engine's format: an integer for each entry of the engine's action spec.

    Raises ValueError if the level does not have an action, or if a number is outside its bounds.
    """
    names = [entry["name"] for entry in spec]
    absent = sorted(pressed.keys() - set(names))
    if absent:
        raise ValueError(f"the level has no action {', '.join(absent)}. Its actions: {', '.join(names)}")
    action = np.array([pressed.get(name, 0) for name in names], np.intc)
    if any(not entry["min"] <= value <= entry["max"] for entry, value in zip(spec, action, strict=True)):
        raise ValueError(f"the action {dict(pressed)} is outside the bounds of the level: {spec}")
    return action


def serve(line: socket.socket, setup: RowSetup, request: tuple[Any, ...] | None) -> None:
    """Answer requests until `close`. request: the first request, if it was already received.

    Raises EOFError or ConnectionError if the parent has ended.
    """
    game: Game | None = None
    try:
        while True:
            kind, *content = request or receive(line)
            request = None
            if kind == "close":
                return
            if game is not None and kind in ("begin", "fill") and game.worn_out_by(content[0]):
                game.close()
                _begin_anew(line, setup, (kind, *content))
            try:
                game = game or Game(setup)
                methods: dict[str, Callable[..., Any]] = {
                    "try": game.try_levels,
                    "begin": game.begin_episode,
                    "step": game.step,
                    "fill": game.fill,
                }
                answer: tuple[str, Any] = ("done", methods[kind](*content))
            except Exception as error:  # noqa: BLE001 - the parent reports whatever the module raises
                answer = ("failed", f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])
            send(line, answer)
    finally:
        if game is not None:
            game.close()


def _begin_anew(line: socket.socket, setup: RowSetup, request: tuple[Any, ...]) -> NoReturn:
    """Restart the program in this process. The new program first answers this request."""
    kept = os.memfd_create("request")
    os.write(kept, pickle.dumps((setup, request)))
    os.lseek(kept, 0, os.SEEK_SET)
    wanted = (line.fileno(), setup.memory_fd, kept)
    for fd in (int(path.name) for path in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
            os.set_inheritable(fd, fd in wanted or fd <= 2)
    signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # as at the start of the process
    os.execv(sys.executable, [*sys.orig_argv[:-1], str(kept)])  # noqa: S606 - no shell is wanted


def main() -> None:
    """Serve the parent. argv: file descriptor of the socket; file descriptor of a pickled (setup, request), or -1."""
    line = socket.socket(fileno=int(sys.argv[1]))
    leave_to_parent()
    working_directory_last()
    request = None
    if int(sys.argv[2]) >= 0:
        with os.fdopen(int(sys.argv[2]), "rb") as kept:
            setup, request = pickle.load(kept)
    with contextlib.suppress(EOFError, ConnectionError):
        serve(line, setup if request else receive(line), request)


if __name__ == "__main__":
    main()
