"""Waiting for a condition."""

import time

MOST_SECONDS = 0.5
"""Time that counts at most between two looks, in seconds. A machine that is suspended meanwhile loses no more."""


def wait_until(condition, seconds=60.0, pause=0.01):
    """Wait until a condition is true. Return False if the time is over before."""
    left, last = seconds, time.monotonic()
    while not condition():
        if left <= 0:
            return False
        time.sleep(pause)
        now = time.monotonic()
        left, last = left - min(now - last, MOST_SECONDS), now
    return True
