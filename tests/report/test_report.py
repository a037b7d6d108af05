"""`pbt-rl report` and `pbt-rl audit`: on simulated runs, on runs that go on, and on broken ones."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from pbt_rl import cli
from pbt_rl.controllers.options import PbtConfig, SearchConfig
from pbt_rl.display.tensorboard import EventFile
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.history import history_of, read_run
from pbt_rl.report import exports, figures
from pbt_rl.report import importance as importances
from pbt_rl.report.importance import Importance, importance
from pbt_rl.report.page import page as report_page
from pbt_rl.report.page import status, write_report
from pbt_rl.report.pictures import PICTURES, draw
from tests.helpers.journals import PBT, read_events, run_of, slot_event, write

PNG = b"\x89PNG\r\n\x1a\n"


def read_history(name, records):
    return history_of(name, read_events(records))


@pytest.fixture(scope="module")
def population():
    return run_of(6, pbt=PBT, limit=70_000)


@pytest.fixture(scope="module")
def small():
    """Too few configurations for importances, which take long."""
    return run_of(4, pbt=PBT, limit=20_000)


@pytest.fixture(scope="module")
def search():
    options = SearchConfig(phases=4, phase_frames=5_000)
    return run_of(12, 4, controller="hypertrick", search=options, pbt=PbtConfig(min_episodes=1))


def drawn(history):
    """Name -> PNG file, or why there is none; all but the slow one."""
    return {p.name: draw(p, history, dpi=40) for p in PICTURES if p.name != "importance"}


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def later(events, seconds):
    return [{**e, "time": e["time"] + seconds} for e in events]


@pytest.fixture
def resumed(search):
    """The search, stopped in its middle and resumed an hour later, on as many slots of which one has another number."""
    middle = len(search) // 2
    first, rest = search[:middle], later(search[middle:], 3600.0)
    at = first[-1]
    held = {e["slot"]: e["enters"] for e in first if e["event"] == "slot"}
    again = [slot_event(slot, None, member) for slot, member in held.items() if member is not None]
    config = {**search[0]["config"], "train_for_frames": 7}
    resume = {"event": "resume", "config": config, "changed": {"train-for-frames": [1, 7]}}
    moment = {"time": at["time"] + 3600.0, "frames": at["frames"]}
    return [*first, at | {"event": "end", "ended": "seconds"}, *(moment | e for e in (resume, *again)), *rest]


def test_the_rungs_of_asha_are_phases():
    options = SearchConfig(resource=9, phase_frames=1000)
    events = run_of(9, 3, controller="asha", search=options, pbt=PbtConfig(min_episodes=1))
    history = read_history("x", events)
    assert history.is_search
    began = [sum(p.number == number for p in history.phases) for number in range(3)]
    assert began[0] == 9
    assert began[0] > began[1] >= began[2] > 0
    assert {p.outcome for p in history.phases} == {"on", "evicted", "completed"}


def test_a_resumed_run_reads_as_if_it_had_not_been_interrupted(search, resumed):
    whole, again = read_history("x", search), read_history("x", resumed)
    assert again.seconds == pytest.approx(whole.seconds)
    phases = [[(p.member, p.number, p.outcome) for p in history.phases] for history in (again, whole)]
    assert phases[0] == phases[1]
    assert [p.seconds for p in again.points] == pytest.approx([p.seconds for p in whole.points])
    assert [d.decision for d in again.decisions] == [d.decision for d in whole.decisions]
    assert (again.ended, again.start.config["train_for_frames"]) == (whole.ended, 7)
    tables, others = exports.files(again), exports.files(whole)
    assert all(tables[name] == others[name] for name in ("nodes.csv", "members.csv"))
    assert read_history("x", resumed[: len(search) // 2 + 2]).ended is None, "it goes on"


def test_a_search_is_accounted_for(search):
    history = read_history("x", search)
    assert history.is_search
    assert sorted(p.member for p in history.phases if p.number == 0) == list(range(12))
    ends = [p.outcome for p in history.phases if p.outcome != "on"]
    assert sorted(set(ends)) == ["completed", "evicted"]
    assert len(ends) == 12
    assert len({turn.slot for turn in history.time_slices}) == 4
    for phase in history.phases:  # no member trains without a slot
        mine = [s for s in history.time_slices if s.member == phase.member]
        begin, end = phase.begin_seconds, phase.end_seconds
        assert any(s.begin_seconds <= begin < end <= s.end_seconds + 1e-6 for s in mine)


def test_the_budget_is_shown_except_in_a_search_which_sets_the_frames(population, search):
    def parts(events):
        config = {**events[0]["config"], "train_for_frames": 3_000_000, "train_for_seconds": 0}
        unended = [{**events[0], "config": config}, *(e for e in events[1:] if e["event"] != "end")]
        return status(read_history("x", unended), running=True)

    assert " of 3M frames of each member" in parts(population)
    assert " frames of each member" in parts(search)
    assert "3M" not in parts(search)


def test_turns_pair_entries_with_exits():
    start = {"event": "start", "time": 0.0, "frames": 0, "config": {}}
    initial = {"event": "initial", "time": 0.0, "frames": 0, "values": [{"lr": 1.0}] * 3}
    slots = [(0, slot_event(0, None, 0)), (0, slot_event(1, None, 1))]
    slots += [(4, slot_event(0, 0, 2)), (6, slot_event(1, 1, None))]
    events = [start, initial, *({**event, "time": time, "frames": 0} for time, event in slots)]
    events.append({"event": "end", "time": 10.0, "frames": 0, "ended": "frames"})
    history = read_history("x", events)
    time_slices = [(s.slot, s.member, s.begin_seconds, s.end_seconds) for s in history.time_slices]
    assert sorted(time_slices) == [(0, 0, 0, 4), (0, 2, 4, 10), (1, 1, 0, 6)]


def test_every_picture_of_a_population_and_of_a_search_is_drawn(population, search):
    of_population, of_search = drawn(read_history("x", population)), drawn(read_history("x", search))
    names = {"objective", "forest", "schedules"}
    assert {name for name, image in of_population.items() if isinstance(image, bytes)} == names
    assert "not a search" in of_population["phases"]
    assert {name for name, image in of_search.items() if isinstance(image, bytes)} == {
        "objective", "forest", "phases"
    }  # fmt: skip
    assert all(image.startswith(PNG) for image in of_search.values() if isinstance(image, bytes))


@pytest.mark.parametrize("kept", [2, 3])
def test_a_run_without_rounds_gets_sentences_instead_of_figures(population, kept):
    images = drawn(read_history("x", population[:kept]))
    assert not any(isinstance(image, bytes) for image in images.values())
    assert all(image.endswith(".") for image in images.values())


def test_objectives_that_are_not_finite_are_left_out(population):
    broken = json.loads(json.dumps(population))
    for event in broken:
        if event["event"] == "round":
            for m, worst in zip(event["report"]["members"], ["nan", "-inf", "inf"], strict=False):
                m["objectives"] = [worst]
    history = read_history("x", broken)
    assert 0 not in history.ranking
    assert all(isinstance(image, bytes | str) for image in drawn(history).values())
    assert rows(exports.files(history)["members.csv"])[0]["objective"] == ""


def test_importance_ranks_the_learning_rate_first():  # T12
    def noise(i, salt):
        return (i * salt * 7919 % 101) / 101

    values = [{"lr": noise(i, 1), "gamma": noise(i, 3), "t_max": noise(i, 5)} for i in range(39)]
    scores = [10 * (v["lr"] - 0.5) ** 2 + 0.2 * v["gamma"] for v in values]
    found = importance(values, scores, forests=2)
    assert max(found.shares, key=found.shares.get) == "lr"
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["lr"] > 0.7
    assert found.r_squared > 0.5


def test_columns_hold_what_their_names_promise(population, search):
    texts = exports.files(read_history("x", population))
    members = rows(texts["members.csv"])
    assert [row["member"] for row in members] == list("012345")
    assert float(members[0]["learning_rate"]) == read_history("x", population).last[0].values["learning_rate"]
    recorded = [d for e in population if e["event"] == "round" for d in e["decisions"]]
    written = rows(texts["decisions.csv"])
    assert [(r["decision"], r["donor"], r["reason"]) for r in written] == [
        (d["decision"], str(d.get("donor", "")), d["reason"]) for d in recorded
    ]
    texts = exports.files(read_history("x", search))
    assert {row["stopped"].split(":")[0] for row in rows(texts["members.csv"])} == {"completed", "evicted"}
    assert set(rows(texts["slots.csv"])[0]) == {"slot", "member", "begin_seconds", "end_seconds"}
    assert {row["outcome"] for row in rows(texts["phases.csv"])} == {"on", "completed", "evicted"}


class Links(HTMLParser):
    """What a browser would fetch, and all tags."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]


@pytest.mark.long
def test_the_page_of_a_run_that_goes_on_with_a_broken_last_line_needs_nothing_else(
    pbt_rl, population, tmp_path
):
    run = write(tmp_path / "a<b>&c", population[:-1])
    with (run / "journal.jsonl").open("a") as file:
        file.write('{"event": "round", "fra')
    code, out, err = pbt_rl("report", run, "--out", tmp_path / "out")
    assert (code, str(run) in err, err.count("\n")) == (0, True, 1)
    assert out.splitlines()[0] == str(tmp_path / "out" / "report.html")
    assert f"and {len(list((tmp_path / 'out').iterdir())) - 1} files" in out
    text = (tmp_path / "out" / "report.html").read_text()
    page = Links(text)
    assert len(page.fetched) == page.tags.count("img") == len(list((tmp_path / "out").glob("*.png")))
    assert all(value.startswith("data:image/png;base64,") for value in page.fetched)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "no end" in text
    assert "a&lt;b&gt;&amp;c: toy/simulated" in text
    assert "b>&c" not in text


def test_a_folder_that_is_no_run_is_one_clear_line(pbt_rl, small, tmp_path):
    run = write(tmp_path / "damaged", small)
    lines = (run / "journal.jsonl").read_text().splitlines()
    (run / "journal.jsonl").write_text("\n".join(["{", *lines]))
    assert pbt_rl("report", run)[0] == pbt_rl("audit", run)[0] == cli.EXIT_USER_ERROR
    (run / "journal.jsonl").write_text(json.dumps({**small[0], "event": "end"}) + "\n")
    assert pbt_rl("report", run)[0] == pbt_rl("audit", run)[0] == cli.EXIT_USER_ERROR
    (run / "report").touch()
    write(run, small)
    code, _, err = pbt_rl("report", run)
    assert (code, str(run / "report") in err) == (cli.EXIT_USER_ERROR, True)


@pytest.mark.parametrize("command", ["report", "watch"])
def test_without_the_extra_a_report_names_what_to_install(pbt_rl, small, tmp_path, monkeypatch, command):
    monkeypatch.setattr("pbt_rl.cli.report.find_spec", lambda name: None)
    code, _, err = pbt_rl(command, write(tmp_path, small))
    assert code == cli.EXIT_USER_ERROR
    assert "pbt-rl[report]" in err


@pytest.mark.parametrize("kind", ["population", "search"])
def test_the_audit_agrees_with_what_a_run_decided(pbt_rl, tmp_path, kind, request):
    events = request.getfixturevalue(kind)
    code, out, err = pbt_rl("audit", write(tmp_path, events))
    decisions = sum(len(e["decisions"]) for e in events if e["event"] == "round")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert re.search(rf"\b{sum(e['event'] == 'round' for e in events)} .*\b{decisions} ", out)


def test_replay_shows_where_a_run_was_tampered_with(pbt_rl, population, tmp_path):
    tampered = json.loads(json.dumps(population))
    rounds = [i for i, e in enumerate(tampered) if e["event"] == "round"]
    decision = next(d for d in tampered[rounds[2]]["decisions"] if "values" in d)
    decision["values"]["learning_rate"] *= 1 + 1e-15
    code, out, _ = pbt_rl("audit", write(tmp_path, tampered))
    assert code == 1
    assert f"line {rounds[2] + 1} " in out
    assert f"member {decision['member']}: learning_rate {decision['values']['learning_rate']!r}" in out
    assert "clip_ratio" not in out

    tampered = json.loads(json.dumps(population))
    del tampered[rounds[1]]["decisions"][-1]
    code, out, _ = pbt_rl("audit", write(tmp_path, tampered))
    assert (code, "recorded: nothing" in out) == (1, True)


def test_links_in_a_report_are_replaced_and_never_followed(small, tmp_path):
    run, mine = write(tmp_path / "run", small), tmp_path / "mine"
    mine.mkdir()
    for name in ("report.html", "objective.png", "members.csv", "importance.png"):
        (mine / name).write_text("precious")
    (run / "report").symlink_to(mine)
    with pytest.raises(ConfigError, match=re.escape(str(mine))):
        write_report(run, run / "report")
    (run / "report").unlink()
    (run / "report").mkdir()
    for path in mine.iterdir():
        (run / "report" / path.name).symlink_to(path)
    written = write_report(run, run / "report")
    assert {path.read_text() for path in mine.iterdir()} == {"precious"}
    assert not any(path.is_symlink() for path in written)
    assert sorted((run / "report").iterdir()) == sorted(written), "no drafts are left"


def test_final_evaluations_are_shown_unless_the_run_went_on(small):
    when = small[-1]["time"]
    judged = [{"member": m, "mean": mean, "episodes": 20} for m, mean in ((1, 7.5), (2, 6))]
    final = {"event": "final", "time": when, "frames": 1, "members": judged}
    history = read_history("x", [*small, final])
    assert [m.get("final") for m in exports.members(history)] == [None, 7.5, 6.0, None]
    page = report_page(history, [])
    assert "<th class=number>final</th>" in page
    assert re.search(r"member 1: 7\.5 .*\b20 ", page)
    assert (history.best, history.everyone[:2]) == (1, [1, 2])
    resume = {"event": "resume", "time": when + 5, "frames": 1, "config": small[0]["config"], "changed": {}}
    again = read_history("x", [*small, final, resume])
    assert again.final is None
    assert "<th class=number>final</th>" not in report_page(again, [])


def test_decisions_have_the_training_time(small):
    start, initial, *rest = small
    begun = {"event": "progress", "members": [], "frames": 0, "training_seconds": 0.0}
    later_by = 600.0
    began = begun | {"time": start["time"] + later_by}
    runs = read_history("x", [start, initial, began, *later(rest, later_by)]), read_history("x", small)
    tables = [
        report_page(run, []).partition("<h2>Decisions</h2>")[2].partition("</table>")[0] for run in runs
    ]
    assert "<td" in tables[0]
    assert tables[0] == tables[1]


def test_values_that_were_typed_at_a_resume_are_no_merit_of_pbt():
    start, initial, *_ = run_of(2, pbt=PBT, limit=20_000)
    values = [{**own, "crash": 3.0} for own in initial["values"]]
    begin = [start, initial | {"values": values}]
    resume = {"event": "resume", "config": start["config"], "changed": {}, "values": {"crash": 1.0}}
    at = {"time": start["time"] + 9, "frames": 5_000}
    seen = [
        {"member": m, "generation": 1, "frames": 6_000, "objective": 1.0 + m, "episodes": 4} for m in (0, 1)
    ]
    progress = {"event": "progress", "members": seen, "time": start["time"] + 10, "frames": 6_000}
    history = read_history("x", [*begin, at | resume, progress])
    assert history.best == 1
    page = report_page(history, [])
    assert "PBT moved" not in page
    assert "crash = 1" in page
    assert draw(next(p for p in PICTURES if p.name == "schedules"), history, dpi=40).startswith(PNG)


def test_of_very_many_states_a_part_is_looked_at(population, monkeypatch):
    """Forests of all states of a long run, tens of thousands, take many minutes."""
    looked_at = []

    def noted(configurations, scores):
        looked_at.append((configurations, scores))
        return Importance(dict.fromkeys(configurations[0], 0.1), 0.5, 1, len(configurations))

    monkeypatch.setattr(importances, "MOST_CONFIGURATIONS", 12)
    monkeypatch.setattr(importances, "importance", noted)
    history = read_history("x", population)
    known = [n for n in history.lineage.nodes if history.objective(n) is not None]
    assert len(known) > 12
    importances.figure(history)
    [(configurations, scores)] = looked_at
    assert len(configurations) == len(scores) == 12
    states = []
    for node in known:
        values = {name: node.values[name] for name in history.varied}
        values[importances.TRAINED] = history.lineage.end_trained(node.key)
        states.append((values, history.objective(node)))
    assert all(pair in states for pair in zip(configurations, scores, strict=True))


def test_a_picture_that_is_not_drawn_any_more_is_removed(pbt_rl, small, tmp_path):
    run = write(tmp_path, small)
    assert pbt_rl("report", run)[0] == 0
    assert (tmp_path / "report" / "schedules.png").exists()
    write(tmp_path, small[:2])
    assert pbt_rl("report", run)[0] == 0
    assert not [p.name for p in (tmp_path / "report").glob("*.png")]


def test_before_a_member_has_an_objective_the_episodes_that_have_ended_are_drawn():
    """27 episodes had ended, and the report drew nothing."""
    start, initial, *_ = run_of(2, pbt=PBT, limit=20_000)
    records = [
        {
            "event": "progress",
            "time": start["time"] + n,
            "frames": 100 * n,
            "members": [
                {
                    "member": m,
                    "generation": 0,
                    "frames": 100 * n,
                    "objective": None,
                    "episodes": n,
                    "complete": False,
                }
                | {"early": float(m + n), "ended": n, "environments": 8}
                for m in (0, 1)
            ],
        }
        for n in (1, 2, 3)
    ]
    history = read_history("x", [start, initial, *records])
    (axes,) = figures.objective(history).axes
    dotted = [
        line.get_xydata().tolist()
        for line in axes.lines
        if line.get_linestyle() == ":" and len(line.get_xdata())
    ]
    assert dotted == [[[100 * n, m + n] for n in (1, 2, 3)] for m in (0, 1)]
    assert re.search(r"member so far 1: ~4 .*\b3 .*\b8 ", report_page(history, []))


def test_reward_terms_losses_and_speed_are_those_of_tensorboard(small, tmp_path):
    run = RunFolder(write(tmp_path, small))
    history = read_run(run.path)
    assert figures.statistics(history) == figures.NO_STATISTICS
    assert figures.learning(history).startswith("No TensorBoard file")
    for member in (0, 1):
        file = EventFile(run.member_events(member))
        for step in (10, 20):
            file.scalars({"stats/energy": step + member, "learning/value_loss": 1.0, "hypers/x": 1.0}, step)
    population = EventFile(run.population_events)
    population.scalars({"throughput/frames_per_second": 500.0}, 30)
    (terms,) = figures.statistics(history).axes
    assert terms.get_title() == "energy"
    assert [line.get_xydata().tolist() for line in terms.lines] == [
        [[10, 10 + m], [20, 20 + m]] for m in sorted((0, 1), key=lambda m: m == history.best)
    ]
    assert [axes.get_title() for axes in figures.learning(history).axes] == [
        "value loss",
        "frames per second",
    ]
    for name in ("statistics", "learning"):
        picture = next(p for p in PICTURES if p.name == name)
        shown = report_page(history, [(picture, draw(picture, history, dpi=40))])
        folded = shown.index("<img") > shown.index("<summary>More")
        assert folded == (name == "learning")
        assert ("losses and speed" in shown) == folded, "the heading names only what is there"
