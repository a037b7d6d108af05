"""How a learner begins again: the same process, a new interpreter, another setup.

After CUDA has refused a recording in the midst, a process can record nothing any more, whatever it does. A fresh one
can. Its parent notices nothing: process, connection and descriptors stay.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pbt_rl.learner.setup import LearnerSetup


def begin_again(setup: LearnerSetup, connection_fd: int) -> NoReturn:
    """Replace this process by one that finds the message where `begin_child` expects its connection."""
    message = os.memfd_create("learner", 0)
    said: Connection[Any, Any] = Connection(os.dup(message))
    said.send(replace(setup, connection_fd=connection_fd))
    said.close()
    os.lseek(message, 0, os.SEEK_SET)
    *command, _ = sys.orig_argv[1:]
    for fd in (connection_fd, message, *setup.fds):
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, str(message)])  # noqa: S606 - our own interpreter
