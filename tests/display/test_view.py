"""Views: which statistics they hold, and that a new one is shown everywhere without a list of names."""

from dataclasses import dataclass, fields

from pbt_rl.display.scalars import member_scalars, summary
from pbt_rl.display.view import RunView, run_statistics, shown
from tests.display.test_tensorboard import write, written
from tests.helpers.views import STATS, member, view


@dataclass(frozen=True, kw_only=True)
class WithOneMore(RunView):
    """A view with one more statistic: the line that a new one takes."""

    stale_edits: int = shown(tag="throughput/stale_edits", key="edits.stale")


def test_a_statistic_of_a_run_is_one_line(tmp_path):
    plain = view(member(0))
    shown = WithOneMore(**{f.name: getattr(plain, f.name) for f in fields(plain)}, stale_edits=9)
    content = summary(shown, frames_per_second_steady=1.0, replacement_milliseconds=[], ended="frames")
    assert content["edits"] == {"stale": 9}
    write(tmp_path, shown)
    assert [value for _, value in written(tmp_path, "population")["throughput/stale_edits"]] == [9]


def test_a_statistic_of_a_loss_is_shown_under_the_name_that_arrives(tmp_path):
    learning = member(0)
    learning.stats["surprise"] = 0.25
    write(tmp_path, view(learning))
    assert [value for _, value in written(tmp_path, "policy_00")["learning/surprise"]] == [0.25]


def test_statistics_of_episodes_games_and_environment_are_no_learning_statistics():
    playing = member(0)
    playing.stats.update({"elo": 1200.0, "win_rate": 0.5, "stats/coins": 3.0})
    tags = set(member_scalars(playing))
    assert {"matchup/elo", "matchup/win_rate", "stats/coins", "episodes/raw_return"} <= tags
    assert {tag for tag in tags if tag.startswith("learning/")} == {
        f"learning/{name}" for name in list(STATS)[3:]
    }


def test_every_statistic_of_a_run_is_shown_somewhere_and_no_tag_or_key_twice():
    shown = [s for s, _ in run_statistics(view()).values()]
    assert all(s.tag or s.key for s in shown)
    for names in ([s.tag for s in shown if s.tag], [s.key for s in shown if s.key]):
        assert len(names) == len(set(names))
