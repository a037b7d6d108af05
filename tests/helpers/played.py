"""A vector env of an engine, with every step that it delivered."""

import numpy as np

from pbt_rl.envs.base import private_step_arrays


class Played:
    """A context that closes the vector env, twice."""

    def __init__(self, vector_env):
        self.vector_env, self.steps = vector_env, []
        self.out = private_step_arrays(vector_env.spec, vector_env.rows)
        try:
            vector_env.reset(self.out)
        except BaseException:
            vector_env.close()
            raise
        self.note()

    def note(self):
        fields = {n: a.copy() for n, a in vars(self.out).items() if isinstance(a, np.ndarray)}
        self.steps.append(fields | {n: a.copy() for n, a in self.out.obs.items()})
        return self.steps[-1]

    def step(self, action):
        """Take an action in all rows, or one in each."""
        shape = self.vector_env.rows, self.vector_env.spec.action.components
        self.vector_env.step(np.broadcast_to(np.array(action, np.int32), shape), self.out)
        return self.note()

    def random(self, steps, seed=0):
        """Take random actions; return field -> [T, R, ...] of all steps so far."""
        rng, nvec = np.random.default_rng(seed), self.vector_env.spec.action.nvec
        for _ in range(steps):
            self.step(rng.integers(0, nvec, (self.vector_env.rows, len(nvec))))
        return self.history()

    def history(self):
        return {name: np.stack([step[name] for step in self.steps]) for name in self.steps[0]}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.vector_env.close()
        self.vector_env.close()
