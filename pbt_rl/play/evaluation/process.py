"""Process that plays the evaluation episodes of one member (during or after training) or of the random policy.

consumes     a FinalSetup or an EvaluationSetup
produces     a FinalRound when episodes have ended, or one Evaluated
waits for    nothing; the parent may kill the process
"""

from __future__ import annotations

import sys

from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.play.evaluation.episodes import EvaluationSetup, FinalSetup, evaluated, final_rounds
from pbt_rl.processes.child import begin_child, send_failure


def main() -> None:
    """Play the episodes that the setup from the parent process requests."""
    connection, setup = begin_child()
    if isinstance(setup, EvaluationSetup):
        try:
            connection.send(evaluated(setup))
        except (ConfigError, EnvSetupError) as error:
            send_failure(connection, str(error), user_error=True)
            sys.exit(1)
        return
    assert isinstance(setup, FinalSetup)
    for played in final_rounds(setup):
        connection.send(played)


if __name__ == "__main__":
    main()
