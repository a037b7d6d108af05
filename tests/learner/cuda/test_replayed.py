"""What a GPU replays, on the screen, as curves and in summary.json."""

import pytest

from pbt_rl.actors.messages import Replayed
from pbt_rl.display.scalars import population_scalars, summary
from pbt_rl.display.view import GraphWarnings
from tests.helpers.views import member, view

WHY = "operation not permitted when stream is capturing"


def test_what_is_replayed_and_why_the_rest_is_not_is_said_everywhere():
    of_two = [
        {"turns": Replayed(98, 100), "steps": Replayed(10, 10)},
        {"turns": Replayed(0, 100, WHY), "steps": Replayed(10, 10)},
    ]
    shown = view(member(0), accelerated=of_two)
    scalars = population_scalars(shown)
    assert scalars["throughput/replayed_turns"] == pytest.approx(0.49)
    assert scalars["throughput/replayed_steps"] == 1
    kept = summary(shown, frames_per_second_steady=1.0, replacement_milliseconds=(), ended="")["replayed"]
    assert kept["turns"] == {"replayed": 98, "of": 200, "why_not": WHY}
    warnings = GraphWarnings()
    (said,) = warnings(shown)
    assert WHY in said
    assert not warnings(shown), "once"
    assert not any("replayed" in tag for tag in population_scalars(view(member(0)))), "without a GPU"
