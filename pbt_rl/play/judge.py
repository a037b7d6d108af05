"""The process that plays one member's final games.

consumes     a FinalSetup
produces     one FinalRound per finished round
waits for    nothing; its parent ends it
"""

from __future__ import annotations

from pbt_rl.play.rounds import FinalSetup, final_rounds
from pbt_rl.wire.process import begin_child


def main() -> None:
    """Play the episodes of the setup."""
    connection, setup = begin_child()
    assert isinstance(setup, FinalSetup)
    for played in final_rounds(setup):
        connection.send(played)


if __name__ == "__main__":
    main()
