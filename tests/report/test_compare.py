"""`pbt-rl report A B C`: runs that differ only in their seed form a group; their spread is shown."""

import csv
from dataclasses import replace

import pytest
from msgspec import structs

from pbt_rl.record.history import read_run
from pbt_rl.report import compare
from pbt_rl.report.compare import groups, mean_and_std, write_comparison
from tests.helpers.journals import PBT, run_of, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two seeds with a mutation rate of 0.5, one with 1."""
    out = tmp_path_factory.mktemp("runs")
    made = []
    for name, seed, rate in (("a", 0, 0.5), ("b", 1, 0.5), ("<c>", 0, 1.0)):
        pbt = replace(PBT, mutation_rate=rate)
        made.append(write(out / name, run_of(4, seed=seed, pbt=pbt, limit=30_000)))
    return made


def with_config(run, **changes):
    """The run with other options in its journal."""
    start, *others = run.events
    return replace(run, events=[structs.replace(start, config=start.config | changes), *others])


def test_seeds_form_a_group_that_is_named_by_what_differs(folders):
    found = groups([read_run(folder) for folder in folders])
    assert [(g.label, g.options, [r.name for r in g.runs]) for g in found] == [
        ("a ... (2 runs)", "pbt.mutation_rate 0.5", ["a", "b"]),
        ("<c>", "pbt.mutation_rate 1.0", ["<c>"]),
    ]
    named = [replace(read_run(folder), name=f"huber.seed{i}") for i, folder in enumerate(folders[:2])]
    assert [g.label for g in groups(named)] == ["huber (2 runs)"]


def test_runs_of_different_environments_have_axes_of_their_own(folders):
    runs = [read_run(folder) for folder in folders]
    options = replace(runs[2].options, env="x/y")
    other = replace(with_config(runs[2], env="x/y"), options=options)
    for seen, titles in ((runs, ["toy/simulated"]), ([*runs[:2], other], ["toy/simulated", "x/y"])):
        assert [axes.get_title() for axes in compare.curves(groups(seen)).axes] == titles


def test_a_group_without_data_keeps_its_colour(folders):
    runs = [read_run(folder) for folder in folders]
    first, second = groups(runs)
    empty = replace(first, runs=[replace(run, events=run.events[:2]) for run in first.runs])
    (axes,) = compare.curves([empty, second]).axes
    assert axes.lines[0].get_color() == compare.COLOURS[1]


def test_draws_of_a_seed_make_no_group_of_their_own_but_given_starts_do(folders):
    runs = [read_run(folder) for folder in folders[:2]]

    def starting(run, value):
        return with_config(run, pbt={**run.start.config["pbt"], "start_values": [f"learning_rate={value}"]})

    drawn = [starting(runs[0], 1e-3), starting(runs[1], 1e-4)]
    assert len(groups(drawn)) == 1
    assert len(groups([*drawn, starting(runs[0], 1e-2)])) == 3


def test_an_option_that_a_group_does_not_give_is_not_named(folders):
    run, *_ = (read_run(folder) for folder in folders)
    found = groups([with_config(run, hours=None), with_config(run, hours=2.0)])
    assert [group.options for group in found] == ["-", "hours 2.0"]


def test_the_page_and_the_tables(folders, tmp_path):
    written = write_comparison(folders, tmp_path / "out")
    assert [p.name for p in written] == ["comparison.html", "groups.csv", "runs.csv", "comparison.png"]
    page = written[0].read_text()
    assert "3 runs: toy/simulated" in page
    assert "&lt;c&gt;" in page
    assert "<c>" not in page
    with written[1].open(newline="") as file:
        first, second = csv.DictReader(file)
    best = [run.score(run.best) for run in map(read_run, folders)]
    assert first["best score"] == mean_and_std(best[:2])
    assert (first["runs"], second["runs"], second["best score"]) == ("2", "1", f"{best[2]:.4g}")
    assert "±" in first["best score"]


def test_the_command_compares(folders, pbt_rl):
    code, out, err = pbt_rl("report", *folders[:2])
    assert (code, err.count("\n"), all(str(folder) in err for folder in folders[:2])) == (0, 1, True)
    assert out.splitlines()[0] == "comparison/comparison.html"
