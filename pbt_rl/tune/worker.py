"""A worker process of `tune.run`: it holds members and serves one connection.

waits for    its connection: the parent's main module and factory, then tasks
produces     one result per task
unblocked by the parent; ended by it (or by its death)
"""

from __future__ import annotations

import pickle
from multiprocessing import spawn

from pbt_rl.tune.workers import Worker
from pbt_rl.wire.process import begin_child


def main() -> None:
    """Carry out tasks until the parent sends None."""
    connection, (parents_main, factory) = begin_child()
    spawn.prepare(parents_main)
    worker = Worker(pickle.loads(factory))
    connection.send("ready")
    while (task := connection.recv()) is not None:
        connection.send(worker.carry_out(task))


if __name__ == "__main__":
    main()
