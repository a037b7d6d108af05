"""The options of commands that load a trained member: which one, and what is followed of what its run names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pbt_rl.record.saved import Source, Trust


@dataclass(frozen=True)
class Played:
    """A trained member."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    member: str = "best"
    """`best` (of that checkpoint), or the id of a member."""
    at: int | None = None
    """Frames of a checkpoint, RUN/checkpoints/at_FRAMES. None: the newest whole one; the run may still go on."""
    trust: bool = False
    """Import the modules that config.json names, and use its paths. They run as your own code does."""
    env: str = ""
    """Environment of the run, if it is your own (module:factory): given here, it is imported without --trust."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Option of that environment, likewise."""
    algo: str = ""
    """Algorithm of the run, likewise."""
    encoder: Annotated[str, tyro.conf.arg(name="model.encoder")] = ""
    """Encoder of the run, likewise."""
    core: Annotated[str, tyro.conf.arg(name="model.core")] = ""
    """Core of the run, likewise."""
    policy_head: Annotated[str, tyro.conf.arg(name="model.policy-head")] = ""
    """Policy head of the run, likewise."""
    value_head: Annotated[str, tyro.conf.arg(name="model.value-head")] = ""
    """Value head of the run, likewise."""

    @property
    def source(self) -> Source:
        """Who plays."""
        return Source(self.run, self.at, self.member)

    @property
    def trusted(self) -> Trust:
        """What is followed of what the runs name."""
        given = {
            "env": (self.env,),
            "env-option": self.env_option,
            "algo": (self.algo,),
            "model.encoder": (self.encoder,),
            "model.core": (self.core,),
            "model.policy-head": (self.policy_head,),
            "model.value-head": (self.value_head,),
        }
        return Trust.of(self.trust, given)
