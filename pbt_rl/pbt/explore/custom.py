"""Exploration by a user's function (`--pbt.custom-explore`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import HyperSpec, Values
from pbt_rl.pbt.own import named


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
        with named(f"--pbt.custom-explore {getattr(self.function, '__name__', self.function)}", ""):
            result = self.function(dict(values), rng)
        if not isinstance(result, Mapping) or result.keys() != values.keys():
            raise ConfigError(
                f"the custom explore function returned {result!r}: it must return a value for each of {list(values)}"
            )
        try:
            numbers = {name: float(result[name]) for name in values}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the custom explore function returned a value that is no number: {error}"
            ) from None
        broken = [name for name, value in numbers.items() if math.isnan(value)]
        if broken:
            raise ConfigError(f"the custom explore function returned NaN for {', '.join(broken)}")
        return {
            name: self.table[name].hold(value) if name in self.table else value
            for name, value in numbers.items()
        }
