"""Equal shares of a member's environments in its objective, so that short episodes count no more than long ones.

After a change the short episodes end first: a mean over what has ended is a mean over those. So the first episode that
each environment begins after the change counts once all environments have ended theirs, then the second ones, and so on
until the window is full. From then on the newest episodes count as they end, which favours none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pbt_rl.pbt.objectives import Judged


@dataclass(eq=False)
class EqualShares:
    """The episodes of one generation of a member, held back until they count.

    environments: of the member. rounds: episodes of each that count in equal shares. patience_frames: after this many
    frames of the member since the change nobody is waited for: what has ended counts, even if an environment still
    plays its first episode.
    """

    environments: int
    rounds: int
    patience_frames: int
    _begun_frames: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)
    """Rounds of episodes that count already."""
    _needed: int = field(init=False)
    """Rounds that count in equal shares in this generation or evaluation; at most `rounds`."""
    _held: dict[int, list[Judged]] = field(default_factory=dict, init=False)
    """Environment -> its episodes after those, oldest first."""
    _over: bool = field(default=False, init=False)
    """Episodes count as they end."""

    def __post_init__(self) -> None:
        assert self.environments > 0
        assert self.rounds > 0
        self._needed = self.rounds

    def restored(self) -> None:
        """Fit what was saved to a plan with fewer environments, or to a smaller window."""
        self._held = {e: held for e, held in self._held.items() if 0 <= e < self.environments}
        self._needed = min(self._needed, self.rounds)
        self._over = self._over or self._counted >= self._needed

    def move(self, environments: int, rounds: int) -> None:
        """Go on in other environments, so many. What is held back of the ones before is let go."""
        self.environments, self.rounds = environments, rounds
        self._held.clear()
        self.restored()

    def begin(self, frames: int, episodes: int | None = None) -> None:
        """Forget everything: a generation begins, or an evaluation, with this many frames of the member.

        episodes: at least so many count in equal shares; None: a whole window.
        """
        self._begun_frames, self._counted, self._over = frames, 0, False
        self._needed = (
            self.rounds if episodes is None else min(self.rounds, -(-episodes // self.environments))
        )
        self._held.clear()

    def end_episode(self, environment: int, episode: Judged) -> list[Judged]:
        """Take in an episode of the present generation; return those that count from now on, oldest round first."""
        if self._over:
            return [episode]
        held = self._held.setdefault(environment, [])
        if len(held) < self._needed - self._counted:
            held.append(episode)
        counting: list[Judged] = []
        while not self._over and sum(map(bool, self._held.values())) == self.environments:
            counting += self._next_round()
            self._counted += 1
            self._over = self._counted == self._needed
        return counting

    def note_frames(self, frames: int) -> list[Judged]:
        """Note how far the member is; return the episodes that count from now on since others took too long."""
        if self._over or frames - self._begun_frames < self.patience_frames:
            return []
        self._over = True
        counting: list[Judged] = []
        while any(self._held.values()):
            counting += self._next_round()
        return counting

    def _next_round(self) -> list[Judged]:
        """Take the next episode of each environment that has one, in the order of the environments."""
        return [self._held[e].pop(0) for e in sorted(self._held) if self._held[e]]
