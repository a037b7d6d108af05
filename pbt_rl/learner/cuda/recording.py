"""CUDA graph capture and replay of programs (functions that run many times on fixed memory).

A program is captured in its third run:

    1st run     eager: libraries initialise, compiled code compiles
    2nd run     eager, checked for calls that cannot be captured (`Rehearsal`)
    3rd run     captured, and replayed from this run on

The check in the second run avoids failed captures, because torch does not recover from them: the allocator stays in
capture mode, and up to torch 2.12 the registered generators cannot draw. If a capture fails nevertheless,
`CudaRecorder.record` repairs as much as possible.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pbt_rl.algos.encoders import NetworkError

Replay = Callable[[], None]
"""Function that replays a captured program."""


class Recorder(Protocol):
    """Protocol for capturing programs as CUDA graphs on one device."""

    def carry_out(self, program: Callable[[], None], *, watched: bool) -> None:
        """Run a program eagerly on the capture stream.

        watched: note whether the program can be captured. If it cannot, the next `record` raises RuntimeError.
        """

    def record(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> Replay:
        """Capture a program without running it. Return the replay function.

        Raises RuntimeError if a call, such as a synchronisation, cannot be captured. Exceptions of the program are
        raised, too.

        generators: random generators that the program draws from. Each replay advances their states.
        """


RUNS = 3
"""Number of runs of a program up to its first replay. The replay counts as a run."""


class NotRecordedError(RuntimeError):
    """Failed capture of a program. The program has not run."""


class Recording:
    """Program, and its CUDA graph after the capture. generators: random generators that the program draws from."""

    def __init__(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> None:
        self._program, self._generators = program, generators
        self._runs = 0
        self._replay: Replay | None = None

    @property
    def replays(self) -> bool:
        """True if the program was captured."""
        return self._replay is not None

    def run(self, recorder: Recorder | None) -> None:
        """Run the program: eagerly in the first two runs, by replay from the third run (RUNS) on.

        The third run first captures the program. Without a recorder, a program that was not captured runs eagerly.

        Raises NotRecordedError if the capture fails. The program has then not run.
        """
        if self._replay is not None:
            self._replay()
        elif recorder is None:
            self._program()
        elif self._runs < RUNS - 1:
            self._runs += 1
            recorder.carry_out(self._program, watched=self._runs == RUNS - 1)
        else:
            try:
                self._replay = recorder.record(self._program, self._generators)
            except (RuntimeError, NetworkError) as error:  # NetworkError wraps errors of custom modules
                raise NotRecordedError(str(error)) from error
            self._replay()


@dataclass
class Replays:
    """Recorder that several programs share, with the total numbers of their runs and replays."""

    what: str
    """Name of the programs in messages."""
    recorder: Recorder | None
    """None: programs run eagerly unless they were captured before."""
    runs: int = 0
    """Number of all runs, eager or replayed."""
    replayed: int = 0
    why_not: str = ""
    """Error of the last failed capture. Empty if no capture failed."""

    def run(self, recording: Recording) -> None:
        """Run a program, by replay if possible. After a failed capture, capture no further programs."""
        try:
            recording.run(self.recorder)
        except NotRecordedError as error:
            self.fail(error)
            recording.run(None)
        self.count(replayed=recording.replays)

    def count(self, *, replayed: bool) -> None:
        """Count one run."""
        self.runs += 1
        self.replayed += replayed

    def restart(self) -> None:
        """Set the numbers of runs and replays to 0."""
        self.runs = self.replayed = 0

    def fail(self, error: Exception) -> None:
        """Capture no further programs, and warn. error: error of the failed capture."""
        self.recorder = None
        self.why_not = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"{self.what} are not captured as CUDA graphs, which costs speed: {error}", stacklevel=2
        )


WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_linalg_check_errors",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)
"""Operations that synchronise, because the host reads the result or the shape of the result."""
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations that synchronise if an index is a mask or in host memory."""


_REFUSED = "which cannot be captured"


class Rehearsal(TorchDispatchMode):
    """Dispatch mode that detects calls known to prevent a capture. device: type of the device, such as "cuda"."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's has no annotations
        self._device = device
        self.refusal = ""
        """Reason why the program cannot be captured, from the first such call. Empty if no such call was found."""
        self.draws = False
        """True if the program may draw from torch's default generator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # because loading torch's compiler takes a second

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.refusal = self.refusal or self._against(func.name().split("::")[1].split(".")[0], args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self.draws = True
        return func(*args, **kwargs)

    def _against(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        here = [x.device.type == self._device for x in _tensors(args)]
        if not any(here):  # the call may still copy host memory to the device
            there = name == "_to_copy" and torch.device(kwargs.get("device") or "cpu").type == self._device
            return f"{name} is an upload, {_REFUSED}" if there else ""
        if name in WAITING:
            return f"{name} waits for the device, {_REFUSED}"
        if name in INDEXING and any(
            x.dtype in (torch.bool, torch.uint8) or x.device.type != self._device for x in _tensors(args[1])
        ):
            return f"{name} with a mask or host indices waits for the device, {_REFUSED}"
        leaves = torch.device(kwargs.get("device") or self._device).type != self._device
        if name == "lift_fresh" or (name in ("copy_", "_to_copy") and (leaves or not all(here))):
            return f"{name} copies between host and device, {_REFUSED}"
        return ""


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


_ONE_AT_A_TIME = threading.Lock()
"""Lock around captures. A capture starts with a synchronisation, which would break the capture of another thread."""
_BROKEN: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture could not be ended. The graphs are kept, because torch's allocators refer to them."""


def broken() -> bool:
    """True if a CUDA graph capture could not be ended. This process can then not capture again."""
    return bool(_BROKEN)


ONE_RANDOM_STATE = torch.__version__ < "2.13"
"""True up to torch 2.12. There, only one capture at a time can contain a generator, and no thread may draw from the
generator during this capture (pytorch#172390)."""

REGISTERED = torch.__version__ < "2.14"
"""True up to torch 2.13, where generators must be registered for a capture. Later versions register generators
automatically (pytorch#176753)."""


class CudaRecorder:
    """Recorder of CUDA graphs on the current stream, or on a side stream if the current one is CUDA's default stream.

    Its graphs share memory and must not run concurrently.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)
        self._refusal = ""

    def carry_out(self, program: Callable[[], None], *, watched: bool) -> None:
        stream, present = self._stream(), torch.cuda.current_stream(self._device)
        rehearsal = Rehearsal(self._device.type)
        drawn = torch.cuda.get_rng_state(self._device)
        stream.wait_stream(present)
        with torch.cuda.stream(stream), rehearsal if watched else contextlib.nullcontext():
            program()
        present.wait_stream(stream)
        self._refusal = self._refusal or rehearsal.refusal
        drew = rehearsal.draws and not torch.equal(drawn, torch.cuda.get_rng_state(self._device))
        if ONE_RANDOM_STATE and drew:
            self._refusal = self._refusal or (
                f"it draws from torch's default generator, as nn.Dropout does. torch {torch.__version__} cannot "
                "capture this while another thread draws (2.13 can)"
            )

    def record(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> Replay:
        """Capture a program.

        Raises RuntimeError if `carry_out` has found a call that cannot be captured, and after each capture that could
        not be ended.
        """
        with _ONE_AT_A_TIME:
            if self._refusal or _BROKEN:
                raise RuntimeError(self._refusal or "an earlier capture failed and could not be ended")
            graph = torch.cuda.CUDAGraph()
            for generator in generators if REGISTERED else ():
                graph.register_generator_state(generator)
            stream = self._stream()
            try:
                # The outer context restores the current stream even if the capture cannot be ended.
                # thread_local, because the acting thread makes unrelated calls during the capture.
                with (
                    torch.cuda.stream(stream),
                    torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"),
                ):
                    program()
            except (RuntimeError, NetworkError) as error:  # NetworkError wraps errors of custom modules
                if _was_ended(graph):
                    raise
                self._mend(graph, generators)
                raise RuntimeError(str(error.__context__ or error)) from error
        return graph.replay

    def _stream(self) -> torch.cuda.Stream:
        present = torch.cuda.current_stream(self._device)
        on_default = present == torch.cuda.default_stream(self._device)  # CUDA cannot capture there
        return self._side if on_default else present

    def _mend(self, graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> None:
        """Repair the allocator and the generators after a failed capture."""
        _BROKEN.append(graph)
        # torch has no public function for this. torch itself calls this private function at the end of a capture.
        with contextlib.suppress(AttributeError, RuntimeError):  # the capture may have failed earlier
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)  # noqa: SLF001 - see above
        if ONE_RANDOM_STATE:
            defaults: Sequence[Any] = torch.cuda.default_generators
            for generator in (*generators, defaults[self._device.index]):
                generator.graphsafe_set_state(generator.clone_state())


def _was_ended(graph: torch.cuda.CUDAGraph) -> bool:
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaRecorder}
"""Device type -> constructor of a recorder."""


def recorder_of(device: torch.device) -> Recorder | None:
    """Create the recorder of a device. Return None on a CPU, where calls run eagerly."""
    make = RECORDERS.get(device.type)
    return None if make is None else make(device)
