"""Small members and controllers for the tests of `pbt_rl.tune.run`; workers find them here."""

import os
import random

from pbt_rl.controllers import Continue, StaticController


class Walker:
    """Its weight grows by `rate` per step, with noise of its own; its state is [weight, state of the noise]."""

    def __init__(self, index):
        self.rng = random.Random(index)
        self.weight = float(index)
        self.taken = []

    def step(self, hypers):
        self.taken.append(dict(hypers))
        self.weight += hypers["rate"] + 0.01 * self.rng.random()

    def evaluate(self):
        return self.weight

    def state(self):
        return [self.weight, self.rng.getstate()]

    def load(self, state):
        self.weight = state[0]
        self.rng.setstate(state[1])


class Fragile(Walker):
    """Raises while its rate is above 1; also when it is made with index 7."""

    error: type[BaseException] = FloatingPointError

    def __init__(self, index):
        if index == 7:
            raise RuntimeError("no seven")
        super().__init__(index)

    def step(self, hypers):
        if hypers["rate"] > 1:
            raise self.error("diverged")
        super().step(hypers)


class Deadly(Walker):
    """Takes its process with it."""

    def step(self, hypers):
        os._exit(3)


class Script(StaticController):
    """Returns the given decisions at their clock, and keeps the reports that it received."""

    def __init__(self, rates, decisions=(), remembers=None):
        super().__init__({})
        self.rates, self.decisions, self.keys = rates, dict(decisions), dict(remembers or {})
        self.reports = []
        self.remembered = frozenset()

    def initial(self, num_members):
        assert num_members == len(self.rates)
        return [{"rate": rate} for rate in self.rates]

    def observe(self, report):
        self.reports.append(report)
        self.remembered = self.keys.get(report.frames, self.remembered)
        return list(self.decisions.pop(report.frames, ()))

    def remembers(self):
        return self.remembered


def goes_on(member, until=None):
    return Continue(member, "on", until)
