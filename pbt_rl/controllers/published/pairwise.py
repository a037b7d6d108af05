"""GPBT-PL's rule of exploration: a copy's values move towards those of its donor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pbt_rl.controllers.explore import PROBABILITY, ExploreRule, from_priors, move_choice, probability
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.options import option


@dataclass
class PairwiseLearning:
    """Pairwise learning of GPBT-PL (Bai and Cheng 2024, arXiv 2404.08233, section IV, with the details of its source).

    A member l that copies the weights of a better one w draws each value anew with `probability`. Every other value
    moves from what it was in l, by a velocity that remembers its last ones:

        v <- inertia r1 v + pull r2 (h_w - h_l)          r1, r2 uniform on 0..1, of each value
        h <- h_l + v, within the bounds

    in the value's own unit. Velocities begin at 0; a value that is drawn anew keeps its own. A choice goes to a
    neighbour of the better member's. The paper pairs the worst quarter with members of the best quarter:
    --pbt.exploit truncation --pbt.replace-fraction 0.25 --pbt.replace-gap 0. A member without a pair keeps its values.
    """

    tuned: Mapping[str, HyperSpec]
    probability: float = option(0.25, at_least=0, at_most=1)
    inertia: float = option(1.0, at_least=0)
    pull: float = option(1.0, at_least=0)
    _velocity: dict[int, dict[str, float]] = field(default_factory=dict, init=False)

    def initial(self, values: Values, rng: Random) -> Values:
        """Draw every tuned value from its prior."""
        return from_priors(self.tuned, values, rng)

    def mutate(self, values: Values, rng: Random) -> Values:  # noqa: ARG002 - the protocol's signature
        """Change nothing: there is nobody to learn from."""
        return dict(values)

    def learn(self, member: int, own: Values, better: Values, rng: Random) -> Values:
        """Return the values of a member that goes on from the weights of a better one."""
        velocity = self._velocity.setdefault(member, {})
        learned = dict(better)
        for name, spec in self.tuned.items():
            if rng.random() < self.probability:
                learned[name] = sample_prior(spec, rng)
            elif spec.scale == "choice":
                learned[name] = move_choice(spec, better[name], "adjacent", rng)
            else:
                pulled = self.pull * rng.random() * (better[name] - own[name])
                velocity[name] = self.inertia * rng.random() * velocity.get(name, 0.0) + pulled
                learned[name] = spec.clamp(own[name] + velocity[name])
        return learned


PAIRWISE = ExploreRule(
    lambda pbt, tuned: PairwiseLearning(tuned, probability(pbt, 0.25)),
    (PROBABILITY,),
    help="a copy's own values move towards its donor's (GPBT-PL).",
)
