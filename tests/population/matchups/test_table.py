"""The table of matchups in shared memory."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pbt_rl.actors.shared_tables import MatchupTable
from pbt_rl.actors.state_pool import anonymous_memory


def test_a_matchup_is_read_whole_while_it_is_written():
    shape = (3, 40, 5)
    fd = anonymous_memory(MatchupTable.size(shape), "test")
    writer, reader = MatchupTable.map(shape, fd), MatchupTable.map(shape, fd)
    writer.write(np.zeros(shape, np.int64))
    stopping = threading.Event()

    def write():
        number = 0
        while not stopping.is_set():
            number += 1
            writer.write(np.full(shape, number))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            seen = set()
            deadline = time.monotonic() + 20
            while len(seen) < 300 and time.monotonic() < deadline:
                version, rows = reader.read(len(seen) % 3)
                assert set(rows.ravel().tolist()) == {version - 1}, "versions count the writes"
                seen.add(version)
            stopping.set()
            writing.result()
    finally:
        stopping.set()
        sys.setswitchinterval(before)
        os.close(fd)
    assert len(seen) == 300
