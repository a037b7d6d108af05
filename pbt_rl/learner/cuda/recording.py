"""Recording the calls of a device, so that one call repeats them all: on CUDA a graph.

A program is carried out again and again, and comes to be recorded in three runs:

    1st run     call by call: libraries warm up, and what compiles itself does
    2nd run     call by call, watched for calls that cannot be recorded (`Rehearsal`)
    3rd run     recorded, and replayed from then on

The second run is there because torch does not undo a recording that CUDA has refused in the midst of it: its allocator
goes on as if one were under way, and up to torch 2.12 the generators that were to be recorded refuse to draw. What the
second run does not find is mended as far as possible (`CudaRecorder.record`).
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
"""Carries a recorded program out."""


class Recorder(Protocol):
    """What records the calls of a device."""

    def carry_out(self, program: Callable[[], None], *, watched: bool) -> None:
        """Carry a program out call by call, where it would be recorded. watched: refuse it if it cannot be."""

    def record(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> Replay:
        """Note the calls of a program without carrying them out; return what carries them out.

        generators: those that the program draws from; every replay draws on.
        Raises RuntimeError if there is a call that cannot be recorded, such as one that waits for the device, or what
        the program raises.
        """


RUNS = 3
"""After so many a program is replayed."""


@dataclass
class Replays:
    """How often programs were carried out, and how often by a replay."""

    runs: int = 0
    replayed: int = 0
    why_not: str = ""
    """Why some are not replayed, if recording them failed."""

    def count(self, *, replayed: bool) -> None:
        """Note one that was carried out."""
        self.runs += 1
        self.replayed += replayed

    def restart(self) -> None:
        """Count from 0."""
        self.runs = self.replayed = 0

    def fail(self, what: str, error: Exception) -> None:
        """Note that a recording failed, and say so where nothing else does."""
        self.why_not = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"{what} are not recorded, which costs speed: {error}", stacklevel=2)


class NotRecordedError(RuntimeError):
    """A program cannot be recorded; nothing of it was carried out."""


class Recording:
    """One program on its way to be recorded. generators: see `Recorder.record`."""

    def __init__(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> None:
        self._program, self._generators = program, generators
        self._runs = 0
        self._replay: Replay | None = None

    @property
    def replays(self) -> bool:
        """Whether the program was recorded."""
        return self._replay is not None

    def run(self, recorder: Recorder | None) -> None:
        """Carry the program out; without a recorder call by call, if it is not recorded. Raises NotRecordedError."""
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
            except (RuntimeError, NetworkError) as error:  # a user's part wraps what it raises
                raise NotRecordedError(str(error)) from error
            self._replay()


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
"""Operations whose result, or its shape, the host has to wait for."""
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


_REFUSED = "which cannot be captured"


class Rehearsal(TorchDispatchMode):
    """Lets a program run and notes the first call that could not be recorded. device: type of the device."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's has no annotations
        self._device = device
        self.refusal = ""
        """Why the program cannot be recorded; "" if nothing is known against it."""
        self.draws = False
        """It may draw from torch's default generator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else entering the mode would load torch's compiler, which takes a second

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
        if not any(here):  # a copy of the host's may have the device as its target
            there = name == "_to_copy" and torch.device(kwargs.get("device") or "cpu").type == self._device
            return f"{name} is an upload, {_REFUSED}" if there else ""
        if name in WAITING:
            return f"{name} waits for the device, {_REFUSED}"
        if name in INDEXING and any(
            x.dtype in (torch.bool, torch.uint8) or x.device.type != self._device for x in _tensors(args[1])
        ):
            return f"{name} by a mask or by numbers of the host waits for the device, {_REFUSED}"
        leaves = torch.device(kwargs.get("device") or self._device).type != self._device
        if name == "lift_fresh" or (name in ("copy_", "_to_copy") and (leaves or not all(here))):
            return f"{name} brings numbers from the host or to it, {_REFUSED}"
        return ""


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


_ONE_AT_A_TIME = threading.Lock()
"""Recording begins with a wait for the whole device, which must not meet another thread's recording."""
_BROKEN: list[torch.cuda.CUDAGraph] = []
"""Recordings that CUDA refused in the midst. torch's allocators go on asking them, so they have to stay."""


def broken() -> bool:
    """Whether CUDA refused a recording in the midst. A process in which that was can record nothing any more."""
    return bool(_BROKEN)


ONE_RANDOM_STATE = torch.__version__ < "2.13"
"""A generator knows one recording, and draws nothing else meanwhile, whichever thread wants to (pytorch#172390)."""

REGISTERED = torch.__version__ < "2.14"
"""A recording is told of its generators; from 2.14 on it finds them out itself (pytorch#176753)."""


class CudaRecorder:
    """CUDA graphs, recorded on the present stream and replayed there. They share memory: one runs at a time."""

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
                f"it draws from torch's default generator, as nn.Dropout does, which torch {torch.__version__} cannot "
                "capture while another thread draws (2.13 can)"
            )

    def record(self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()) -> Replay:
        """After a recording that CUDA has refused in the midst there is no other one."""
        with _ONE_AT_A_TIME:
            if self._refusal or _BROKEN:
                raise RuntimeError(self._refusal or "a recording before this one could not be ended")
            graph = torch.cuda.CUDAGraph()
            for generator in generators if REGISTERED else ():
                graph.register_generator_state(generator)
            stream = self._stream()
            try:
                # The outer context brings the present stream back also if the recording cannot be ended.
                # thread_local: the thread that acts goes on with calls of its own, which have nothing to do with this.
                with (
                    torch.cuda.stream(stream),
                    torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"),
                ):
                    program()
            except (RuntimeError, NetworkError) as error:  # a user's part wraps what it raises
                if _was_ended(graph):
                    raise
                self._mend(graph, generators)
                raise RuntimeError(str(error.__context__ or error)) from error
        return graph.replay

    def _stream(self) -> torch.cuda.Stream:
        present = torch.cuda.current_stream(self._device)
        on_default = present == torch.cuda.default_stream(self._device)  # where nothing can be recorded
        return self._side if on_default else present

    def _mend(self, graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> None:
        """Let memory and random numbers be had as if there had been no recording."""
        _BROKEN.append(graph)
        # torch has no public call for this: it does it itself where a recording was ended, or in `use_mem_pool`, which
        # begins anew first.
        with contextlib.suppress(AttributeError, RuntimeError):  # it may not have come that far
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
"""Type of a device -> what records on it."""


def recorder_of(device: torch.device) -> Recorder | None:
    """Return what records on this device; None where calls cost little or cannot be recorded."""
    make = RECORDERS.get(device.type)
    return None if make is None else make(device)
