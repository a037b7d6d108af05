"""A worker process of `members.run`: one bench, served over one connection.

waits for    its connection: the parent's main module and factory, then orders
produces     one reply an order
unblocked by the parent; ended by it (or by its death)
"""

from __future__ import annotations

import pickle
from multiprocessing import spawn

from pbt_rl.tune.workers import Bench, End, WorkerReady, WorkerSetup
from pbt_rl.wire.process import begin_child


def main() -> None:
    """Carry out orders until the parent ends it."""
    connection, setup = begin_child()
    assert isinstance(setup, WorkerSetup)
    spawn.prepare(setup.main)
    bench = Bench(pickle.loads(setup.factory))
    connection.send(WorkerReady())
    while not isinstance(order := connection.recv(), End):
        connection.send(bench.carry_out(order))


if __name__ == "__main__":
    main()
