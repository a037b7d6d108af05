"""A pretend device: tensors that say `pretend:0`, compute real numbers on the CPU, and show every call to it.

What a GPU would do is counted with the line that asked for it: launches, uploads, downloads and syncs (moments at which
the host waits for the device). An operation on tensors of both devices raises as on a GPU. `Device.observers` see every
call, so a test can record and replay them or follow what happens on which stream.

    with pretend_device() as device:
        pack = Pack(..., device=device.torch)
        device.counts.reset()
        ...
        assert device.counts.total("sync") == 0

It lasts for the thread that entered it: each thread that makes tensors on the device enters `device.mode()` of its own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Self
from unittest import mock

import pytest
import torch
import torch._dynamo  # loaded now: at the first tensor made under a mode it would meet our Generator
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

import pbt_rl.algos.weights

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip(f"torch {torch.__version__} has no devices in Python", allow_module_level=True)
backend_registration._setup_privateuseone_for_python_backend("pretend")

DEVICE = torch.device("pretend:0")
CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent.parent
PRODUCT = (str(ROOT / "pbt_rl"), str(ROOT / "algos"), str(ROOT / "envs"))
KINDS = ("launch", "upload", "download", "sync")
WITHOUT_A_KERNEL = {"_unsafe_view", "lift_fresh", "resize_", "set_", "record_stream"}
READ_BY_THE_HOST = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_cpu_generator, _cpu_tensor = torch.Generator, torch.tensor


class PretendTensor(Tensor):
    """A tensor of the device; `host` holds its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=DEVICE,
            layout=real.layout,
        )
        made.host = real
        if _entered:
            _entered[-1].memory.hold(made)
        return made

    def __init__(self, real: Tensor) -> None:
        """All is done in __new__."""

    def __repr__(self) -> str:
        return f"PretendTensor({self.host!r})"

    def __setitem__(self, key: Any, value: Any) -> None:
        """As of a CUDA tensor: torch makes a number a tensor of the host. A single element has its shape, so it is
        copied, and the host waits; a slice is filled by a kernel.
        """
        if isinstance(value, bool | int | float) and (part := self[key]).dim() == 0:
            part.copy_(torch.as_tensor(value, dtype=self.dtype))
        else:
            super().__setitem__(key, value)

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        assert _entered, "a tensor of the pretend device is used after the device is gone"
        return _entered[-1].call(func, args, kwargs or {})


@dataclass(frozen=True)
class Call:
    """One call that reached the device. All tensors are the real ones behind it."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: list[Tensor]
    kind: str
    """launch, upload, download, or `view` for what costs the device nothing."""
    waits: bool
    """The host waits until the device has done this and all before it."""
    site: str

    @property
    def name(self) -> str:
        return self.func._schema.name.split("::")[1]

    @property
    def writes(self) -> list[Tensor]:
        """Tensors that it changes in place, and those that it makes."""
        return _changed(self.func, self.args, self.kwargs) + ([] if self.kind == "view" else self.outs)

    @property
    def reads(self) -> list[Tensor]:
        """Tensors given to it that it does not change."""
        writes = {id(x) for x in self.writes}
        return [x for x in _tensors((self.args, self.kwargs)) if id(x) not in writes]


class LiveBytes:
    """Memory of the device that some tensor lies in."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._holders: Counter[int] = Counter()
        self._lock = threading.RLock()

    def hold(self, tensor: PretendTensor) -> None:
        """Count the memory of a tensor as long as the tensor is there."""
        storage = tensor.host.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        with self._lock:
            self._holders[place] += 1
            if self._holders[place] == 1:
                self.now += size
                self.most = max(self.most, self.now)
        weakref.finalize(tensor, self._let_go, place, size)

    def _let_go(self, place: int, size: int) -> None:
        with self._lock:
            self._holders[place] -= 1
            if not self._holders[place]:
                del self._holders[place]
                self.now -= size


class Counts:
    """How often each kind of thing happened, by the line of the product that asked for it."""

    def __init__(self) -> None:
        self.sites: dict[str, Counter[str]] = defaultdict(Counter)

    def reset(self) -> None:
        self.sites.clear()

    def note(self, kind: str, site: str) -> None:
        self.sites[kind][site] += 1

    def total(self, kind: str) -> int:
        assert kind in KINDS
        return sum(self.sites[kind].values())

    @property
    def totals(self) -> dict[str, int]:
        return {kind: self.total(kind) for kind in KINDS}

    def listing(self, kind: str) -> str:
        """Lines of `count x site`, the most frequent first."""
        return "\n".join(f"{n:6} x {site}" for site, n in self.sites[kind].most_common())


class Device:
    """The device while `pretend_device` lasts."""

    torch = DEVICE

    def __init__(self) -> None:
        self.counts = Counts()
        self.observers: list[Callable[[Call], None]] = []
        """Called after every call, in the thread that made it."""
        self.watchers: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], None]] = []
        """Called before every call, with the real tensors."""
        self.memory = LiveBytes()
        self.recording: int | None = None
        """Thread that records now."""
        self.faults: Counter[str] = Counter()
        """What another thread than the recording one did meanwhile that breaks the recording on CUDA, or is broken."""
        self._done: set[tuple[int, str, int]] = set()

    def mode(self) -> TorchDispatchMode:
        """What a thread enters to make tensors on the device."""
        return _Mode(self)

    def wait(self, what: str) -> None:
        """Count a sync that is no call on a tensor, such as that of a stream or an event."""
        self.counts.note("sync", f"{_site()} ({what})")
        if self.recording not in (None, threading.get_ident()):
            self.faults[f"{what} waits at {_site()}"] += 1

    def _look_for_faults(self, call: Call) -> None:
        """A thread's first call of a kind loads kernels or a library, and its first memory of a size is allocated."""
        me = threading.get_ident()
        size = sum(x.untyped_storage().nbytes() for x in call.outs) if call.kind == "launch" else 0
        new = [what for what in ((me, call.name, 0), (me, "memory", size)) if what not in self._done]
        self._done.update(new)
        if self.recording in (None, me) or call.kind == "view":
            return
        if call.waits:
            self.faults[f"{call.name} waits at {call.site}"] += 1
        elif new:
            self.faults[f"first {new[0][1]} at {call.site}"] += 1

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out one call on the real tensors; returns what it returns, on the device that it would be on."""
        given = _tensors((args, kwargs))
        ours = [x for x in given if isinstance(x, PretendTensor)]
        target = _target(func, kwargs, ours)
        if not ours and target.type != DEVICE.type:
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        kind, waits = _kind(func, name, given, ours, target, args, kwargs)
        site = _site()
        _refuse_mixtures(func, name, given, ours, kind, site)
        if name in INDEXING and len(ours) < len(given):  # a host index is uploaded, and the host waits
            self.counts.note("upload", site)
            self.counts.note("sync", site)
        real_args, real_kwargs = _each(_real, args), _host_options(_each(_real, kwargs))
        for watcher in list(self.watchers):
            watcher(func, real_args, real_kwargs)
        result = func(*real_args, **real_kwargs)
        if name == "_to_copy" and result.data_ptr() == real_args[0].data_ptr():
            result = result.clone()
        self._note(Call(func, real_args, real_kwargs, _tensors(result), kind, waits, site))
        if target.type != DEVICE.type:
            return result if name != "copy_" else args[0]
        same = {id(x.host): x for x in ours}  # what is changed in place stays the same object

        return _each(lambda x: same[id(x)] if id(x) in same else PretendTensor(x), result)

    def _note(self, call: Call) -> None:
        if call.kind != "view":
            self.counts.note(call.kind, call.site)
        if call.waits:
            self.counts.note("sync", call.site)
        self._look_for_faults(call)
        for observer in list(self.observers):
            observer(call)


class PretendRecorder:
    """What a CUDA graph does, see `pbt_rl/learner/cuda`: it repeats the recorded calls on the same memory."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._refusal = ""
        self.seconds = 0.0
        """A recording takes so much longer: for what another thread does meanwhile."""
        self.recorded: list[int] = []
        """Calls of each recording."""

    def carry_out(self, program: Callable[[], None], *, watched: bool) -> None:
        from pbt_rl.learner.cuda.recording import Rehearsal

        rehearsal = Rehearsal(DEVICE.type)
        with rehearsal if watched else contextlib.nullcontext():
            program()
        self._refusal = self._refusal or rehearsal.refusal

    def record(
        self, program: Callable[[], None], generators: Sequence[torch.Generator] = ()
    ) -> Callable[[], None]:
        """Note the calls of a program. To know its shapes it is carried out, and what it changed is put back.

        What refuses it here and not in the rehearsal would break a recording on CUDA: an AssertionError.
        """
        if self._refusal:
            raise RuntimeError(self._refusal)
        states = [generator.get_state() for generator in generators]
        calls: list[Call] = []
        before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        made: set[int] = set()

        me = threading.get_ident()

        def keep(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for x in () if threading.get_ident() != me else _changed(func, args, kwargs):
                storage = x.untyped_storage()
                if storage.data_ptr() not in before.keys() | made:
                    before[storage.data_ptr()] = (storage, storage.clone())

        def note(call: Call) -> None:
            if threading.get_ident() != me:
                return
            if call.waits or call.kind in ("upload", "download"):
                raise AssertionError(
                    f"operation not permitted when stream is capturing: {call.name} at {call.site}"
                )
            made.update(
                x.untyped_storage().data_ptr()
                for x in call.outs
                if call.kind != "view" or "empty" in call.name
            )
            calls.append(call)

        self._device.watchers.append(keep)
        self._device.observers.append(note)
        self._device.recording = me
        try:
            program()
            time.sleep(self.seconds)
        finally:
            self._device.recording = None
            self._device.watchers.remove(keep)
            self._device.observers.remove(note)
            for storage, content in before.values():
                storage.copy_(content)
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        self.recorded.append(len(calls))
        return lambda: self._replay(calls)

    def _replay(self, calls: list[Call]) -> None:
        self._device.counts.note("launch", "replay")
        for call in calls:
            if call.kind == "view":
                continue
            for now, then in zip(_tensors(call.func(*call.args, **call.kwargs)), call.outs, strict=True):
                if now.data_ptr() != then.data_ptr():
                    then.copy_(now)


_entered: list[Device] = []


class _Mode(TorchDispatchMode):
    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        return self._device.call(func, args, kwargs or {})


@contextlib.contextmanager
def pretend_device() -> Iterator[Device]:
    """Enter the device. Generators of it are those of the CPU, so both draw the same numbers."""
    device = Device()
    _entered.append(device)
    with (
        mock.patch.object(torch, "Generator", _make_generator),
        mock.patch.object(torch, "tensor", _make_tensor),
        mock.patch.object(PretendTensor, "new_tensor", _new_tensor, create=True),
        mock.patch.object(pbt_rl.algos.weights, "point", _point),
        # Else backward runs in a thread of its own, which may sum with another number of threads than a replay does.
        torch.autograd.set_multithreading_enabled(False),
        device.mode(),
    ):
        try:
            yield device
        finally:
            _entered.pop()


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors that a call changes in place."""
    given = list(zip(func._schema.arguments, args, strict=False))
    given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
    return _tensors([v for a, v in given if a.alias_info is not None and a.alias_info.is_write])


def _kind(func, name, given, ours, target, args, kwargs) -> tuple[str, bool]:
    """(kind of a call, whether the host waits for it)."""
    if name in ("_to_copy", "copy_") and _crosses(name, given, ours, target):
        non_blocking = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        return ("upload" if target.type == DEVICE.type else "download"), not non_blocking
    if name in READ_BY_THE_HOST:
        return "download", True
    nothing = bool(given) and not any(x.numel() for x in given)
    costless = nothing or func.is_view or name in WITHOUT_A_KERNEL or "empty" in name
    return ("view" if costless else "launch"), False


def _crosses(name: str, given: Sequence[Tensor], ours: Sequence[Tensor], target: torch.device) -> bool:
    if name == "copy_":
        return isinstance(given[0], PretendTensor) != isinstance(given[1], PretendTensor)
    return bool(ours) != (target.type == DEVICE.type)


def _target(func: Any, kwargs: dict[str, Any], ours: Sequence[Tensor]) -> torch.device:
    """The device on which the result lies."""
    name = func._schema.name.split("::")[1]
    asked = kwargs.get("device")
    if name in READ_BY_THE_HOST:
        return CPU if ours else torch.device(asked or CPU)
    if asked is not None:
        return torch.device(asked)
    return DEVICE if ours else CPU


def _refuse_mixtures(func, name, given, ours, kind, site) -> None:
    others = [x for x in given if not isinstance(x, PretendTensor)]
    if not others or not ours or name in INDEXING or kind in ("upload", "download"):
        return
    if any(x.dim() for x in others):  # a number of the host travels with the launch
        shapes = [(str(x.device), tuple(x.shape)) for x in given]
        raise RuntimeError(f"expected all tensors on one device: {func} of {shapes} at {site}")


def _real(x: Any) -> Any:
    return x.host if isinstance(x, PretendTensor) else x


def _host_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Options of the same call on the CPU."""
    kept = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "non_blocking")}
    return kept | {"device": CPU} if "device" in kept else kept


def _each(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """Replace every tensor in arguments or results of a call; faster than torch's trees, of which these are simple."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {name: _each(change, value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_each(change, value) for value in tree])
    return tree


def _tensors(tree: Any) -> list[Tensor]:
    """All tensors in arguments or results of a call."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, list | tuple):
        return [x for value in tree for x in _tensors(value)]
    return []


def _site() -> str:
    """The innermost line of the product that is running; autograd's own thread has none."""
    frame = sys._getframe(1)
    while frame is not None:
        place = _place(frame.f_code)
        if place is not None:
            return f"{place[0]}:{frame.f_lineno} {place[1]}"
        frame = frame.f_back
    return "backward"


@functools.cache
def _place(code: CodeType) -> tuple[str, str] | None:
    """File and function of code of the product; None for any other."""
    path = code.co_filename
    return (f"{Path(path).parent.name}/{Path(path).name}", code.co_name) if path.startswith(PRODUCT) else None


def _make_generator(_device: Any = "cpu") -> torch.Generator:
    return _cpu_generator()


def _make_tensor(data: Any, *, dtype=None, device=None, **options: Any) -> Tensor:
    """`torch.tensor`, which builds its result below the dispatcher."""
    made = _cpu_tensor(data, dtype=dtype, **options)
    return made if device is None or torch.device(device).type == "cpu" else made.to(device)


def _new_tensor(self: Tensor, data: Any, *, dtype=None, device=None, **options: Any) -> Tensor:
    """`Tensor.new_tensor`, likewise."""
    return _make_tensor(data, dtype=dtype or self.dtype, device=device or self.device, **options)


def _point(module, segments, flat, grad) -> None:
    """`point`, with new parameters: torch lets no `.data` cross to a tensor of another kind."""
    named = list(module.named_parameters())
    for segment, (name, _) in zip(segments, named, strict=True):
        *path, leaf = name.split(".")
        owner = module
        for part in path:
            owner = getattr(owner, part)
        owner._parameters[leaf] = torch.nn.Parameter(segment.view(flat).detach(), requires_grad=False)
        if grad.numel():
            owner._parameters[leaf].requires_grad_()
            owner._parameters[leaf].grad = segment.view(grad)
