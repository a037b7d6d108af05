"""Exploration by a user's function (`--pbt.custom-explore`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import HyperSpec, Values


@dataclass(frozen=True)
class CustomExplore:
    """A user's function: `function(values, rng)` returns new values. It usually stands last in a pipeline (Ray).

    table: what the new values are held to (`HyperSpec.hold`); values outside of the table are taken as they are. All
    randomness must come from `rng`, or a run cannot be audited. Raises ConfigError for a result with other names or
    with NaN.
    """

    function: Callable[[Values, Random], Values]
    table: Mapping[str, HyperSpec] = field(default_factory=dict)

    def initial(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Leave the values alone."""
        return dict(values)

    def mutate(self, values: Values, rng: Random) -> Values:
        """Call the function."""
        result = self.function(dict(values), rng)
        if not isinstance(result, Mapping) or result.keys() != values.keys():
            raise ConfigError(
                f"the custom explore function returned {result!r}: it must return a value for each of {list(values)}"
            )
        broken = [name for name, value in result.items() if math.isnan(value)]
        if broken:
            raise ConfigError(f"the custom explore function returned NaN for {', '.join(broken)}")
        return {
            name: self.table[name].hold(result[name]) if name in self.table else result[name]
            for name in values
        }
