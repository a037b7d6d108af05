"""Where the members of `members.run` live: in this process, or in several that hold their share of them.

    run --orders--> crew --one at a time--> bench (here, or a worker's) --> the user's members
        <-replies--      <-----------------

A member never moves; its state does, pickled, through the parent's memory.

worker    consumes   orders, one at a time
          produces   one reply an order
          waits for  its connection to the parent; it is ended by the parent, or dies with it
"""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, spawn
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from pbt_rl.wire.process import Child

WORKER = "pbt_rl.tune.worker"
END_SECONDS = 5.0


class Member(Protocol):
    """Anything that trains. It holds its own generators of random numbers, so that a run can be repeated."""

    def step(self, hypers: Mapping[str, Any]) -> None:
        """Train a little, with these hyperparameters."""

    def evaluate(self) -> float:
        """The objective as it is now; more is better. It must not change the member."""

    def state(self) -> Any:
        """All that makes the member what it is, but for the hyperparameters. It must be possible to pickle it."""

    def load(self, state: Any) -> None:
        """Become what `state` says, of this member or of another one."""


@dataclass(frozen=True)
class Make:
    """Make the member, with the factory's argument."""

    member: int
    index: int


@dataclass(frozen=True)
class Train:
    """Take so many steps (none: stay as it is), then evaluate. The reply is the objective."""

    member: int
    hypers: Mapping[str, Any]
    steps: int


@dataclass(frozen=True)
class Save:
    """The reply is the state, pickled."""

    member: int


@dataclass(frozen=True)
class Load:
    """Become what the pickled state says."""

    member: int
    state: bytes


@dataclass(frozen=True)
class End:
    """End the worker."""


Order = Make | Train | Save | Load


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker.

    main: prepares its interpreter, as multiprocessing does it. factory: pickled.
    """

    main: dict[str, Any]
    factory: bytes


@dataclass(frozen=True)
class WorkerReady:
    """The first message of a worker: its factory is loaded."""


@dataclass(frozen=True)
class Failure:
    """The reply where the member's own code raised."""

    traceback: str


class Bench:
    """The members of one process."""

    def __init__(self, make: Callable[[int], Member]) -> None:
        self._make = make
        self._members: dict[int, Member] = {}

    def carry_out(self, order: Order) -> Any:
        """Do what is asked; whatever the member's code raises becomes a Failure."""
        try:
            return self._do(order)
        except Exception:  # noqa: BLE001 - the member is broken, the others are not
            return Failure(traceback.format_exc())

    def _do(self, order: Order) -> Any:
        if isinstance(order, Make):
            self._members[order.member] = self._make(order.index)
            return None
        member = self._members[order.member]
        if isinstance(order, Train):
            for _ in range(order.steps):
                member.step(order.hypers)
            return float(member.evaluate())
        if isinstance(order, Save):
            return pickle.dumps(member.state(), pickle.HIGHEST_PROTOCOL)
        member.load(pickle.loads(order.state))
        return None


class Crew(Protocol):
    """Carries out orders; those of one member one after the other."""

    def carry_out(self, orders: Sequence[Order]) -> list[Any]:
        """One reply an order, in their order."""

    def close(self) -> None:
        """End what was started."""


class LocalCrew:
    """All members in this process."""

    def __init__(self, make: Callable[[int], Member]) -> None:
        self._bench = Bench(make)

    def carry_out(self, orders: Sequence[Order]) -> list[Any]:
        """One reply an order, in their order."""
        return [self._bench.carry_out(order) for order in orders]

    def close(self) -> None:
        """Nothing was started."""


class WorkerCrew:
    """Members i, i + W, i + 2W, ... in worker i of W. Raises RunFailed when a worker dies."""

    def __init__(self, make: Callable[[int], Member], workers: int) -> None:
        from pbt_rl.errors import require  # noqa: PLC0415
        from pbt_rl.wire.process import Child  # noqa: PLC0415 - who trains in one process needs no processes

        try:
            factory = pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            remedy = f"the factory cannot go to other processes, give a function of a module ({error})"
            require(False, "workers", workers, remedy)
        # As multiprocessing's spawn does it: a factory of the user's own script is found again in the child.
        main = {k: v for k, v in spawn.get_preparation_data("member").items() if k != "authkey"}
        self._children: list[Child[Order | End, Any]] = []
        try:
            for number in range(workers):
                self._children.append(Child(WORKER, f"worker {number}", WorkerSetup(main, factory), ()))
            for child in self._children:
                self._receive(child)
        except BaseException:
            self.close()
            raise

    def carry_out(self, orders: Sequence[Order]) -> list[Any]:
        """One reply an order, in their order. A worker has one order at a time, so that no pipe fills up."""
        queues: list[deque[tuple[int, Order]]] = [deque() for _ in self._children]
        for number, order in enumerate(orders):
            queues[order.member % len(queues)].append((number, order))
        replies: list[Any] = [None] * len(orders)
        busy: dict[object, tuple[Child[Order | End, Any], deque[tuple[int, Order]]]] = {
            c.connection: (c, q) for c, q in zip(self._children, queues, strict=True) if q
        }
        for child, queue in busy.values():
            self._send(child, queue[0][1])
        while busy:
            for ready in connection.wait([child.connection for child, _ in busy.values()]):
                child, queue = busy[ready]
                number, _ = queue.popleft()
                replies[number] = self._receive(child)
                if queue:
                    self._send(child, queue[0][1])
                else:
                    del busy[child.connection]
        return replies

    def _send(self, child: Child[Order | End, Any], order: Order) -> None:
        try:
            child.connection.send(order)
        except OSError:
            self._died(child)

    def _receive(self, child: Child[Order | End, Any]) -> Any:
        try:
            return child.connection.recv()
        except (EOFError, OSError):
            self._died(child)

    def _died(self, child: Child[Order | End, Any]) -> NoReturn:
        from pbt_rl.errors import RunFailed  # noqa: PLC0415

        raise RunFailed(child.how_it_ended())

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        for child in self._children:
            with contextlib.suppress(OSError):
                child.connection.send(End())
        deadline = time.monotonic() + END_SECONDS
        for child in self._children:
            child.end(max(0.0, deadline - time.monotonic()))
        self._children = []
