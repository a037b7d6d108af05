"""`python -m pbt_rl.cli.job PARENT ...` is `pbt-rl ...` that ends in order when the process PARENT does."""

import ctypes
import os
import signal
import sys

from pbt_rl.cli import main

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has died before
        sys.exit(128 + signal.SIGTERM)
    main()
