"""Hypers that an algorithm of the user's own declares: options, values that PBT tunes, in every file of a run."""

import json
import pickle
import re
import shutil

import pytest

from pbt_rl.cli.python import train
from pbt_rl.cli.resume import parse_resume
from pbt_rl.cli.train import run as train_command
from pbt_rl.config.command import make_config, parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.play.evaluate import evaluate
from pbt_rl.record.saved import Source, read_config

TEMPERED = "tests.helpers.third_algorithm:TEMPERED"
TYPED = ["--env", "toy/identity", "--algo", TEMPERED]


def test_they_are_options_with_bounds_and_help_and_given_in_files_and_in_python(capsys, tmp_path):
    config = parse_train([*TYPED, "--hypers.temperature", "0.5", "--hypers.depth=4"])
    assert (config.hypers.temperature, config.hypers.depth) == (0.5, 4)
    assert pickle.loads(pickle.dumps(config)) == config, "they travel to other processes"
    assert config.hypers.learning_rate == 0.002, "of the recipe"
    with pytest.raises(ConfigError, match=r"--hypers.temperature 0.0 "):
        parse_train([*TYPED, "--hypers.temperature=0"])
    with pytest.raises(SystemExit):
        train_command([*TYPED, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--hypers\.temperature FLOAT .*?\(0\.001 to 1000; tuned: prior", shown)
    with pytest.raises(ConfigError, match=r"--hypers.temperature"):
        parse_train(["--env", "toy/identity", "--hypers.temperature", "1"])
    given = make_config(env="toy/identity", algo=TEMPERED, hypers={"temperature": 3})
    assert given.hypers.temperature == 3.0
    file = tmp_path / "options.toml"
    file.write_text(f'env = "toy/identity"\nalgo = "{TEMPERED}"\n[hypers]\ntemperature = 4\n')
    assert parse_train(["--config", str(file)]).hypers.temperature == 4.0


def test_a_hyper_that_others_have_is_refused():
    with pytest.raises(ConfigError, match=r"GammaAgain .*gamma"):
        parse_train(["--env", "toy/identity", "--algo", "tests.helpers.third_algorithm:TWICE"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose members all begin with the default, and in which PBT has tuned it."""
    pbt = {"period_frames": 500, "start_frames": 500, "min_episodes": 1, "mutation_rate": 1.0}
    options = {"mode": "serial", "devices": "cpu", "num_policies": 4, "figures": False, "pbt": pbt}
    where = {"out": tmp_path_factory.mktemp("runs"), "name": "own"}
    return train(env="toy/identity", algo=TEMPERED, train_for_frames=3000, **options, **where)


def test_pbt_tunes_them_and_every_file_has_them_and_is_read_without_importing_the_algorithm(run):
    values = {member.hypers["temperature"] for member in run.members}
    assert values - {2.0}
    assert {member.hypers["depth"] for member in run.members} == {3.0}
    assert json.loads(run.paths.config.read_text())["hypers"]["temperature"] == 2.0
    assert json.loads(run.paths.values(0).read_text())["hypers"].keys() >= {"temperature", "depth"}
    config = read_config(run.folder)
    assert "bounds" not in table(config.hypers)["temperature"].metadata
    assert config.hypers.temperature == 2.0
    assert "bounds" in table(config.with_declared_hypers().hypers)["temperature"].metadata


def test_a_run_goes_on_and_its_members_are_played(run, monkeypatch):
    monkeypatch.chdir(run.folder.parent)
    again = parse_resume(run.folder, ["--train-for-frames", "3500"])
    assert train(again).members[0].frames >= 3500
    evaluate(Source(run.folder, None, "best"), 2, None, 0, greedy=False)


def test_an_audit_decides_the_same_and_of_a_copy_needs_trust(run, tmp_path):
    from pbt_rl.cli.report import run_audit as audit

    assert audit([str(run.folder)]) == 0
    copied = str(shutil.copytree(run.folder, tmp_path / "copied"))
    with pytest.raises(ConfigError, match="--trust"):
        audit([copied])
    assert audit([copied, "--trust"]) == 0
