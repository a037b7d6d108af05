"""Contention is what a thread waits for a core, and nothing where there is no account of it."""

from pbt_rl.learner.learner import WINDOW_SECONDS, Contention, seconds_waited


class Machine:
    """A clock and an account that the test moves."""

    def __init__(self) -> None:
        self.now, self.waited = 0.0, 0.0

    def contention(self) -> Contention:
        return Contention(lambda _thread: self.waited, lambda: self.now)


def test_a_window_in_which_a_tenth_was_waited_makes_the_next_one_contended():
    machine = Machine()
    contended = machine.contention()
    machine.waited += 0.5
    machine.now += 0.5 * WINDOW_SECONDS
    assert not contended()  # the first window is not whole
    machine.now += 0.5 * WINDOW_SECONDS
    assert contended()
    machine.now += 0.9 * WINDOW_SECONDS
    assert contended()
    machine.now += 0.1 * WINDOW_SECONDS
    machine.waited += 0.15 * WINDOW_SECONDS
    assert contended()
    machine.now += WINDOW_SECONDS
    machine.waited += 0.09 * WINDOW_SECONDS
    assert not contended()


def test_without_an_account_nothing_is_contended():
    now = iter(range(100))
    contended = Contention(lambda _thread: None, lambda: float(next(now)))
    assert not any(contended() for _ in range(5))
    assert seconds_waited(2**30) is None  # no thread of this process
