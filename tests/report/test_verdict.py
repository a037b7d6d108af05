"""The box of the control group, its formula, the notes, and the front of score and cost."""

import itertools
import re
from statistics import fmean

import pytest

from pbt_rl.controllers.lineage import Noise
from pbt_rl.record.history import read_run
from pbt_rl.record.run_options import PbtOptions, RunOptions
from pbt_rl.report.compare import cost_curves, pareto, run_costs
from pbt_rl.report.figures import drawn_curves
from pbt_rl.report.page import page, sentence
from pbt_rl.report.pictures import PICTURES, draw
from pbt_rl.report.verdict import control_facts, expected_best, notes, scores
from tests.helpers.journals import PBT, run_of, write

SCORES = (3.0, -1.0, 7.0, 7.0, 2.5)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 7])
def test_the_best_is_the_mean_over_all_subsets_or_draws_with_replacement(k):
    draws = itertools.combinations(SCORES, k) if k <= 5 else itertools.product(SCORES, repeat=k)
    assert expected_best(SCORES, k) == pytest.approx(fmean(map(max, draws)))


def controlled(tmp_path, *, controls=4, final=None, busy=None, halves=None):
    events = run_of(4, pbt=PBT, limit=70_000, control=controls)
    end = events.pop()
    if busy:
        last = next(e for e in reversed(events) if e["event"] == "round")
        kept = ("member", "generation", "frames")
        seen = [{name: m[name] for name in kept} for m in last["report"]["members"]]
        seen = [m | {"episodes": 1, "objective": 1.0} for m in seen]
        progress = {"event": "progress", "frames": 0, "members": seen}
        for seconds, threads in ((5.0, {}), (10.0, busy), (20.0, busy)):
            events.append(progress | {"time": 1.7e9 + seconds, "busy_threads": threads})
    if final:
        games = [{"member": m, "mean": mean, "episodes": 20} for m, mean in final.items()]
        for one in games if halves else ():
            one["halves"] = halves[one["member"]]
        events.append({"event": "final", "time": end["time"], "frames": 0, "members": games})
    return read_run(write(tmp_path / "run", [*events, end]))


def test_the_box_compares_equal_numbers_of_starts(tmp_path):
    final = {0: 10.0, 1: 8.0, 2: 9.0, 3: 9.5, 4: 1.0, 5: 2.0, 6: 3.0, 7: 4.0}
    history = controlled(tmp_path, final=final)
    facts = dict(control_facts(history))
    assert (facts["best of 4 controls, expected"], facts["difference"]) == (4.0, "+6")
    assert re.search(r"\b20 ", facts["scores"])
    shown = page(history, [])
    assert "<td class=text>best of 4 controls, expected</td><td class=number>4</td>" in shown
    assert shown.index("Population and control group") < shown.index("Members")
    assert len(re.findall(r"<tr class=control>", shown)) == 4
    assert shown.count("<tr class=best>") == 1
    assert '<p class="lead">4 members, 4 controls, ' in shown
    lucky = controlled(tmp_path / "lucky", final=final | {6: 30.0})
    assert re.search(r"member 0: 10 .*\b20 ", sentence(lucky))


def test_one_half_of_the_games_picks_and_the_other_scores(tmp_path):
    """Member 1 is picked by the first half, member 0 by the second; neither was so good in the other."""
    halves = dict(enumerate([(4.0, 9.0), (10.0, 5.0), *[(1.0, 1.0)] * 2, *[(2.0, 2.0)] * 4]))
    final = {m: fmean(two) for m, two in halves.items()}
    facts = dict(control_facts(controlled(tmp_path, final=final, halves=halves)))
    assert facts["best of the population"] == 4.5  # (5 + 4) / 2
    assert facts["difference"] == "+2.5"
    assert "half" in facts["scores"]


def test_controls_are_never_changed_and_have_a_band(tmp_path):
    history = controlled(tmp_path)
    assert {t.decision.member for t in history.decisions} <= {0, 1, 2, 3}
    assert set(scores(history)[1]) == {4, 5, 6, 7}
    picture = next(p for p in PICTURES if p.name == "objective")
    assert draw(picture, history)[:4] == b"\x89PNG"


def test_what_is_said_of_the_population_leaves_controls_out(tmp_path):
    history = controlled(tmp_path)
    assert set(history.ranking) | set(drawn_curves(history)) <= {0, 1, 2, 3}
    assert set(drawn_curves(history, controls=True)) & {4, 5, 6, 7}
    assert set(history.everyone) == set(range(8))
    assert 0 < history.founders <= 4
    assert f"<dd>{history.founders} of 4</dd>" in page(history, [])


def test_the_notes_name_the_option_to_change():
    class Run:
        is_search = False
        options = RunOptions()
        noise = Noise(comparisons=6, replacements=8, within=6)

    luck, periods = notes(Run)
    assert luck.startswith("8 replacements, 6 ")
    assert "--pbt.exploit t-test" in luck
    assert periods.startswith("6 comparisons")
    assert "--train-for-frames" in periods, "shorter periods would contradict the first note"
    Run.options = RunOptions(pbt=PbtOptions("timed"))
    assert ["--pbt.period-seconds" in note for note in notes(Run)] == [True, False]
    Run.noise = Noise(comparisons=6, replacements=8, within=1)
    assert "--pbt.period-seconds" in notes(Run)[1]
    Run.noise = Noise(comparisons=30, replacements=8, within=1)
    assert [note.count("--") for note in notes(Run)] == [0]
    assert notes(Run)[0].startswith("8 replacements, 1 ")


def test_the_front_holds_what_no_cheaper_point_equals():
    points = [(1.0, 2.0), (2.0, 1.0), (2.0, 3.0), (3.0, 3.0), (4.0, 5.0)]
    assert pareto(points) == [(1.0, 2.0), (2.0, 3.0), (4.0, 5.0)]


def test_a_run_costs_what_all_of_its_members_do(tmp_path):
    history = controlled(tmp_path, busy={"learning": 1.5, "environment": 0.5, "waiting": 7.0})
    assert history.cpu_seconds == pytest.approx(40.0)
    points = run_costs(history, "CPU")
    assert points[-1][0] == pytest.approx(history.cpu_seconds)
    assert points[-1][1] == max(p[-1].drawn for p in drawn_curves(history).values())
    assert cost_curves([("#000000", [controlled(tmp_path / "none")])]) is None
