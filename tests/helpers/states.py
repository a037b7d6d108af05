"""A pool of states in ordinary memory, and weights that are drawn as numbers."""

import numpy as np


class FakePool:
    """See `population.store.Pool`. What is cleared cannot be read."""

    entry_bytes = 1 << 30

    def __init__(self):
        self._entries, self.size = {}, 0

    def grow(self, entries):
        self.size = max(self.size, entries)

    def views(self, entry):
        return self._entries[entry][0]

    def read(self, entry):
        return {name: array.copy() for name, array in self._entries[entry][0].items()}

    def counts(self, entry):
        return self._entries[entry][1]

    def write(self, entry, arrays, counts):
        assert entry < self.size
        self._entries[entry] = ({name: np.array(array) for name, array in arrays.items()}, counts)

    def clear(self, entry):
        self._entries.pop(entry, None)


class FakeInitialiser:
    """See `population.store.Initialiser`."""

    @staticmethod
    def number(member, generation):
        """What the weights of a member that are drawn for a generation are."""
        return member + 100.0 * generation

    def initialised(self, member, generation):
        return {"param": np.full(2, self.number(member, generation))}
