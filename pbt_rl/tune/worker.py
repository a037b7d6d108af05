"""A worker process of `members.run`: one bench, served over one connection.

waits for    its connection: the parent's main module and factory, then orders
produces     one reply an order
unblocked by the parent; ended by it (or by its death)
"""

from __future__ import annotations

import pickle
from multiprocessing import spawn

from pbt_rl.tune.workers import Bench
from pbt_rl.wire.process import begin_child


def main() -> None:
    """Carry out orders until the parent says None."""
    connection, (parents_main, factory) = begin_child()
    spawn.prepare(parents_main)
    bench = Bench(pickle.loads(factory))
    connection.send("ready")
    while (order := connection.recv()) is not None:
        connection.send(bench.carry_out(order))


if __name__ == "__main__":
    main()
