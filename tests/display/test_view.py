"""Views: which statistics they hold, and that a new one is shown everywhere without a list of names."""

from dataclasses import dataclass, fields, replace

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from pbt_rl.display.scalars import member_scalars, summary
from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.display.view import RunView, run_statistics, shown
from pbt_rl.record.folder import RunFolder
from tests.helpers.views import STATS, member, view


@dataclass(frozen=True, kw_only=True)
class WithOneMore(RunView):
    """A view with one more statistic: the line that a new one takes."""

    stale_edits: int = shown(tag="throughput/stale_edits", key="edits.stale")


def with_one_more(shown, number):
    return WithOneMore(**{f.name: getattr(shown, f.name) for f in fields(shown)}, stale_edits=number)


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def write(folder, *views):
    display = TensorBoard(
        RunFolder(folder), len(views[0].members), config_json="{}", warn=print, figures=False
    )
    for one in views:
        display.update(one)
    display.close()


def written_layout(folder):
    """Category -> titles of its charts, as TensorBoard reads them."""
    found = Layout()
    found.ParseFromString(
        events(folder / "population").Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    )
    return {category.title: [chart.title for chart in category.chart] for category in found.category}


def test_a_statistic_of_a_run_is_one_line(tmp_path):
    shown = with_one_more(view(member(0)), 9)
    content = summary(shown, frames_per_second_steady=1.0, replacement_milliseconds=[], ended="frames")
    assert content["edits"] == {"stale": 9}
    write(tmp_path, shown)
    assert [e.value for e in events(tmp_path / "population").Scalars("throughput/stale_edits")] == [9]
    assert "stale_edits" in written_layout(tmp_path)["Population"]


def test_a_statistic_of_a_loss_is_shown_under_the_name_that_arrives(tmp_path):
    learning = member(0)
    learning.stats["surprise"] = 0.25
    write(tmp_path, view(learning))
    assert [e.value for e in events(tmp_path / "policy_00").Scalars("learning/surprise")] == [0.25]
    assert "surprise" in written_layout(tmp_path)["Learning"]


def test_the_layout_is_written_once_with_the_statistics_that_come_first(tmp_path):
    early = replace(member(0), stats={})
    write(tmp_path, view(early), view(member(0), seconds=60.0, frames=9000), view(early, seconds=90.0))
    assert written_layout(tmp_path)["Learning"] == [
        name for name in STATS if name not in ("raw_return", "shaped_return", "length_steps")
    ]


def test_statistics_of_episodes_games_and_environment_are_no_learning_statistics():
    from pbt_rl.display.charts import layout

    playing = member(0)
    playing.stats.update({"elo": 1200.0, "win_rate": 0.5, "stats/coins": 3.0})
    tags = set(member_scalars(playing))
    assert {"matchup/elo", "matchup/win_rate", "stats/coins", "episodes/raw_return"} <= tags
    assert {tag for tag in tags if tag.startswith("learning/")} == {
        f"learning/{name}" for name in list(STATS)[3:]
    }
    assert "learning/coins" not in layout(view(playing))["Learning"]


def test_every_statistic_of_a_run_is_shown_somewhere_and_no_tag_or_key_twice():
    shown = [s for s, _ in run_statistics(view()).values()]
    assert all(s.tag or s.key for s in shown)
    for names in ([s.tag for s in shown if s.tag], [s.key for s in shown if s.key]):
        assert len(names) == len(set(names))
