"""Whatever shows a run names the same best member: of the final evaluation where there was one, and never a control."""

from dataclasses import replace

import pytest

from pbt_rl.controllers.objectives import by_score
from pbt_rl.display.ranking import best_member
from pbt_rl.display.view import FinalEvaluation
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.history import read_run
from pbt_rl.report.compare import comparison_page, groups
from pbt_rl.report.listing import list_runs
from pbt_rl.report.live import Live
from pbt_rl.report.page import page
from tests.helpers.journals import PBT, run_of, write
from tests.helpers.views import member

NAN = float("nan")


@pytest.mark.parametrize(
    ("objectives", "final_scores", "order"),
    [
        ({0: 1.0, 1: 3.0, 2: 3.0, 3: None}, {}, [1, 2, 0]),
        ({0: 1.0, 1: 3.0}, {0: 2.0}, [0, 1]),
        ({0: None, 1: 430.8}, {0: 500.0, 1: 488.0}, [0, 1]),
        ({0: 5.0, 1: 3.0}, {0: NAN, 1: NAN}, [0, 1]),
        ({0: float("-inf"), 1: float("inf")}, {}, []),
    ],
)
def test_final_evaluations_come_first_and_then_objectives(objectives, final_scores, order):
    assert by_score(objectives, final_scores) == order
    games = {m: FinalEvaluation(mean, 0.0, 20) for m, mean in final_scores.items()}
    views = [replace(member(m, objective), final=games.get(m)) for m, objective in objectives.items()]
    assert best_member(views) == next(iter(order), None)


@pytest.mark.parametrize("final_scores", [{}, {0: 8.0, 1: 500.0, 2: 9.0, 3: 7.0, 4: 900.0, 5: 1.0}])
def test_all_that_show_a_run_agree(tmp_path, final_scores):
    events = run_of(4, pbt=PBT, limit=70_000, control=2)
    end = events.pop()
    games = [{"member": m, "mean": mean, "episodes": 20} for m, mean in final_scores.items()]
    final = [{"event": "final", "time": end["time"], "frames": 0, "members": games}] if games else []
    objectives = {0: 3.0, 1: None, 2: 7.0, 3: 7.0, 4: 99.0, 5: 1.0}
    last = next(e for e in reversed(events) if e["event"] == "round")
    kept = ("member", "generation", "frames")
    told = [{name: m[name] for name in kept} for m in last["report"]["members"]]
    told = [one | {"episodes": 1, "objective": objectives[one["member"]]} for one in told]
    for one in last["report"]["members"]:
        one["objectives"] = [] if objectives[one["member"]] is None else [objectives[one["member"]]]
    last["decisions"] = []
    progress = {"event": "progress", "time": end["time"], "frames": last["frames"], "members": told}
    run = write(tmp_path / "run", [*events, progress, *final, end])
    history, best = read_run(run), 1 if final_scores else 2
    judged = {m: FinalEvaluation(mean, 0.0, 20) for m, mean in final_scores.items()}
    views = [replace(member(m, objectives[m]), control=m > 3, final=judged.get(m)) for m in range(6)]
    assert history.best == best_member(views) == best
    assert f"member {best}: {final_scores.get(best, objectives[best]):g} " in page(history, [])
    assert f"member {best}: {final_scores.get(best, objectives[best]):g} " in Live(run).page
    compared = comparison_page(groups([history]), None)
    assert (
        f"<td class=number>{best}</td><td class=number>{final_scores.get(best, objectives[best]):g}</td>"
        in compared
    )
    assert history.everyone[0] == 4, "a control may be above all"
    ends = [{"id": m, "objective": objectives[m]} for m in range(6)]
    for m, mean in final_scores.items():
        ends[m]["final"] = {"mean": mean}
    RunFolder(run).write_summary({"ended": "frames", "members": ends})
    (row,) = list_runs(run)
    assert (row.best, row.final) == (objectives[best], final_scores.get(best))
