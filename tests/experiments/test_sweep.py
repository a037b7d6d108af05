"""`pbt-rl sweep`: which runs there are, what each may use, and that one which fails does not end the rest."""

import json
import os
import re
import signal
import subprocess
from dataclasses import replace

import psutil
import pytest

from pbt_rl.cli.sweep import (
    SweepCommand,
    _grid,
    _is_done,
    _print_groups,
    _print_results,
    _read,
    _seeds,
    run,
    shares_of,
)
from pbt_rl.config import Config
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.errors import ConfigError
from pbt_rl.experiments.jobs import Ended, Point, Share, Sweep, points, shares
from pbt_rl.plan.machine import CORES
from pbt_rl.record.folder import to_json
from pbt_rl.record.journal import Journal
from pbt_rl.report.listing import RunRow
from pbt_rl.run.views import UNCOMPARED
from tests.helpers.runs import command_of, start
from tests.helpers.saved import write_run
from tests.helpers.waiting import wait_until

EVERYTHING = frozenset(os.sched_getaffinity(0))
HERE = Share("", EVERYTHING, len(EVERYTHING))


def test_points_are_all_combinations_with_every_seed():
    found = points({"hypers.learning-rate": ["1e-4", "1e-3"], "algo": ["appo"]}, [0, 7])
    each = [(seed, rate) for seed in (0, 7) for rate in ("1e-4", "1e-3")]
    combinations = [f"learning-rate_{rate}.algo_appo.seed{seed}" for seed, rate in each]
    assert [p.name for p in found] == combinations
    assert found[1].values == {"hypers.learning-rate": "1e-3", "algo": "appo"}
    assert [p.name for p in points({}, [3])] == ["seed3"]
    assert points({"env": ["atari/pong"]}, [0])[0].name == "env_atari-pong.seed0"


@pytest.mark.parametrize("grid", [{"a": ["1", "1"]}, {"a": ["x/y", "x:y"]}])
def test_runs_of_one_name_are_refused(grid):
    with pytest.raises(ConfigError, match=" a_"):
        points(grid, [0])


@pytest.mark.parametrize(
    ("jobs", "devices", "cpus", "cores", "expected"),
    [
        (1, [], [0, 1], 2, [("", {0, 1}, 2)]),
        (2, [], [0, 1, 2, 3, 4], 5, [("", {0, 1}, 2), ("", {2, 3, 4}, 3)]),
        (3, [], [4, 5], 2, [("", {4}, 1), ("", {5}, 1), ("", {4}, 1)]),
        (2, ["cuda:0", "cuda:1", "cuda:2"], [0, 1], 2, [("cuda:0", {0}, 1), ("cuda:1,cuda:2", {1}, 1)]),
        (3, ["cuda:0", "cuda:1"], [0], 1, [("cuda:0", {0}, 1), ("cuda:1", {0}, 1), ("cuda:0", {0}, 1)]),
        (2, [], range(8), 3, [("", {0, 1, 2, 3}, 1), ("", {4, 5, 6, 7}, 2)]),
        (4, [], range(8), 2, [("", {0, 1}, 1), ("", {2, 3}, 1), ("", {4, 5}, 1), ("", {6, 7}, 1)]),
    ],
)
def test_devices_and_cores_are_dealt(jobs, devices, cpus, cores, expected):
    assert shares(jobs, devices, cpus, cores) == [Share(d, frozenset(c), n) for d, c, n in expected]


def test_words_of_the_sweep_and_of_its_runs():
    words = "--name=x --seeds 0 2-4 --env toy/identity --grid a.b=1,2 --jobs 2 --no-figures"
    own, common = _read(words.split())
    assert own == SweepCommand("x", 2, seeds=("0", "2-4"), grid=("a.b=1,2",))
    assert common.words == ["--env", "toy/identity", "--no-figures"]
    assert _seeds(own.seeds) == [0, 2, 3, 4]
    assert _grid(["--a=1,2"]) == {"a": ["1", "2"]}


def test_a_sweep_within_a_run_is_refused(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("config.json", "journal.jsonl"):
        (tmp_path / "x" / name).write_text("{}")
    with pytest.raises(ConfigError, match="x is a run"):
        run(["--name", "x", "--out", str(tmp_path), "--env", "toy/identity"])
    assert len([*(tmp_path / "x").iterdir()]) == 2


def test_devices_are_dealt_if_all_runs_have_the_same():
    assert [share.devices for share in shares_of(2, {"cpu,cuda:0"}, 4)] == ["cpu", "cuda:0"]
    assert [share.devices for share in shares_of(2, {"cpu", "cuda:0"}, 4)] == ["", ""]
    assert len(shares_of(None, {"cpu,cuda:0"}, 4)) == 1


def test_a_run_that_was_interrupted_before_it_began_has_not_failed(tmp_path, capsys):
    found = [Point(f"seed{seed}", {}, seed) for seed in range(3)]
    ended = [Ended(point, code, 1.0) for point, code in zip(found, (-2, 130, 1), strict=True)]
    assert _print_results(tmp_path, found, ended, (130, -2)) == 1
    assert "FAILED seed2 " in capsys.readouterr().out
    assert _print_results(tmp_path, found, ended, ()) == 3


def test_runs_that_compared_nobody_are_told(tmp_path, capsys):
    found = points({}, [0, 1])
    (tmp_path / "logs").mkdir()
    for point, last in zip(found, (f"{UNCOMPARED}: lower it", "pbt-rl resume"), strict=True):
        (tmp_path / "logs" / f"{point.name}.txt").write_text(f"best 1\n{last}\n")
    _print_results(tmp_path, found, [Ended(point, 0, 1.0) for point in found], ())
    assert f"1 run {UNCOMPARED}" in capsys.readouterr().out


@pytest.mark.parametrize(("final", "means"), [(2.0, ("3", "2")), (None, ("8", "7"))])
def test_combinations_are_compared_by_one_measure(final, means, capsys):
    found = [Point(name, {"algo": name}, 0) for name in ("appo", "a3c")]
    first = RunRow("appo", "toy/identity", 1, 9, 8.0, "ended", 0.0, final=3.0)
    rows = {"appo": first, "a3c": replace(first, name="a3c", best=7.0, final=final)}
    _print_groups(found, rows)
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "algo=" in line]
    assert shown == [[f"algo={p.name}", mean, "(1", "runs)"] for p, mean in zip(found, means, strict=True)]


def test_one_that_fails_does_not_end_the_rest(tmp_path, capsys):
    words = {"seed0": ["nonsense"], "seed1": ["--version"], "seed2": ["--version"]}
    sweep = Sweep(tmp_path, lambda point, _devices: words[point.name], [HERE, HERE])
    ended = sweep.run(points({}, [0, 1, 2]))
    assert sorted((e.point.name, e.code) for e in ended) == [("seed0", 2), ("seed1", 0), ("seed2", 0)]
    assert isinstance(ended[0], Ended)
    (failed,) = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert "'nonsense'" in failed
    assert (tmp_path / "logs" / "seed1.txt").read_text().startswith("pbt-rl ")
    assert os.sched_getaffinity(0) == EVERYTHING


def test_a_run_plans_for_its_part_of_a_quota(tmp_path, monkeypatch):
    popen, given = subprocess.Popen, []

    def noted(*words, **options):
        given.append(options["env"][CORES])
        return popen(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", noted)
    share = replace(HERE, cores=3)
    Sweep(tmp_path, lambda _point, _devices: ["--version"], [share]).run(points({}, [0]))
    assert given == ["3"]


def test_a_signal_that_comes_while_a_run_is_being_made_reaches_it(tmp_path, monkeypatch, capsys):
    popen = subprocess.Popen

    def interrupted(*words, **options):
        process = popen(*words, **options)
        signal.raise_signal(signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    words = ["train", *SMALL.split(), f"--out={tmp_path}", "--name=seed0", "--train-for-frames=2000"]
    sweep = Sweep(tmp_path, lambda _point, _devices: words, [HERE])
    (ended,) = sweep.run(points({}, [0, 1]))
    assert ended.code in {128 + signal.SIGTERM, -signal.SIGTERM}
    assert "FAILED" not in capsys.readouterr().out


SMALL = (
    "--env=toy/identity --num-policies=2 --actors=1 --no-figures --pbt.period-frames=500 --pbt.start-frames=0"
    " --pbt.min-episodes=1"
)


def jobs_of(pid):
    return [c for c in psutil.Process(pid).children() if "pbt_rl" in command_of(c)]


@pytest.mark.parametrize(
    ("changed", "done"),
    [
        ({}, True),
        ({"save_every_seconds": 5.0}, True),
        ({"pbt": PbtConfig(mutation_rate=0.9)}, None),
        ({"final_episodes": 3}, None),
        ({"pbt": PbtConfig(mutation_rate=0.9), "train_for_frames": 900}, False),
        ({"algo": "a3c"}, False),
    ],
)
def test_a_run_that_has_ended_with_other_options_is_refused(changed, done, tmp_path):
    config = Config("toy/identity", num_policies=2, out=tmp_path, name="seed0", train_for_frames=600)
    journal = Journal(write_run(tmp_path / "seed0", config) / "journal.jsonl")
    journal.start(to_json(config), 0, {})
    journal.write("end", 600, ended="frames")
    journal.close()
    now = replace(config, **changed)
    if done is None:
        with pytest.raises(ConfigError, match="has ended with other options: --"):
            _is_done(tmp_path / "seed0", now)
    else:
        assert _is_done(tmp_path / "seed0", now) == done


@pytest.mark.long
def test_a_sweep_is_interrupted_and_goes_on(tmp_path):
    words = ("sweep", "--name=s", *SMALL.split(), "--seeds", "0", "1", "--save-every-seconds=0.5")
    sweep = start(tmp_path, *words, "--train-for-frames=1000000000")
    folder = tmp_path / "runs" / "s"
    assert wait_until(lambda: list((folder / "seed0" / "checkpoints").glob("at_*[0-9]")))
    assert sweep.end(signal.SIGINT) == 130
    assert re.search(r"seed0 .*saved", sweep.out)
    assert not (folder / "seed1").exists()
    summary = json.loads((folder / "seed0" / "summary.json").read_text())
    assert summary["ended"] == "interrupted by SIGINT"
    again = start(tmp_path, *words, "--train-for-frames=2000")
    assert again.wait() == 0, again.out
    assert "runs/s/seed0 runs/s/seed1" in again.out
    assert json.loads((folder / "seed1" / "summary.json").read_text())["ended"] == "frames"


@pytest.mark.long
def test_a_sweep_that_is_killed_leaves_no_run(tmp_path):
    sweep = start(tmp_path, "sweep", "--name=s", *SMALL.split(), "--train-for-frames=1000000000")
    assert wait_until((tmp_path / "runs" / "s" / "seed0" / "journal.jsonl").exists)
    (job,) = jobs_of(sweep.process.pid)
    sweep.process.kill()
    sweep.wait()
    psutil.wait_procs([job], timeout=30)
    assert not job.is_running()
    summary = json.loads((tmp_path / "runs" / "s" / "seed0" / "summary.json").read_text())
    assert summary["ended"] == "interrupted by SIGTERM"
