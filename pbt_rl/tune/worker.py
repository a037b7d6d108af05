"""Worker process of `tune.run`, which runs members for the parent process.

consumes     a WorkerSetup, then tasks
produces     one result per task
waits for    its connection to the parent
ends         at an `End` message, or when the parent kills the worker or dies
"""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing import spawn
from typing import Any

from pbt_rl.processes.child import begin_child
from pbt_rl.tune.workers import End, Worker, WorkerReady, WorkerSetup


def main() -> None:
    """Carry out tasks until the message `End`."""
    connection, setup = begin_child()
    assert isinstance(setup, WorkerSetup)
    _import_main(setup.main)
    try:
        worker = Worker(pickle.loads(setup.factory))
    except AttributeError as error:
        error.add_note(
            "Define the factory of members at the top level of its module: workers import it from there"
        )
        raise
    connection.send(WorkerReady())
    while not isinstance(task := connection.recv(), End):
        connection.send(worker.carry_out(task))


def _import_main(preparation: dict[str, Any]) -> None:
    """Import the parent's script as multiprocessing's spawn method does.

    If the script starts a process with the method spawn or forkserver, multiprocessing raises RuntimeError. The method
    fork raises no error.

    preparation: preparation data of multiprocessing's spawn method.
    """
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # noqa: SLF001 - there is no public way
    spawn.prepare(preparation)
    del process._inheriting  # noqa: SLF001


if __name__ == "__main__":
    main()
