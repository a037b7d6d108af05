"""Options of runs that begin from what others have learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import tyro

from pbt_rl.errors import require
from pbt_rl.options import option


@dataclass(frozen=True)
class InitOptions:
    """What members begin with instead of drawn weights."""

    init_from: tyro.conf.UseAppendAction[tuple[str, ...]] = option(())
    """Begin from what another run has learned: RUN[@FRAMES][:MEMBER] (default: the best member of its newest
    checkpoint) or a member's .safetensors file. Once: all members begin there. Given --num-policies times: member i
    begins at the i-th."""
    init_parts: Literal["all", "weights", "weights+normalisers"] = "all"
    """What of it. all: the optimiser's state too. Hypers are this run's own."""
    init_strict: bool = True
    """Refuse what does not fit this network. no: load what fits, such as all but the head for other actions."""

    def check_whole(self, config: Any) -> None:
        """Raise ConfigError unless there is one source, or one for each member."""
        require(
            len(config.init_from) in (0, 1, config.num_policies),
            "init-from",
            " ".join(config.init_from),
            f"give one source for all, or one for each of the {config.num_policies} members",
        )
