"""A run's folder: its files, its config as JSON, its summary in one piece."""

import json
import math
from pathlib import Path

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder, config_from_json, to_json
from pbt_rl.record.journal import Journal
from pbt_rl.record.saved import read_config

CONFIG = Config("toy/identity", num_policies=3, name="demo")


def strictly(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_config_of_another_version_is_one_clear_error():
    data = json.loads(json.dumps(to_json(CONFIG)))
    assert config_from_json(data) == CONFIG
    data["pbt"]["volatility"] = 1
    with pytest.raises(ConfigError, match=r"pbt.volatility"):
        config_from_json(data)


def test_a_former_option_is_left_out():
    data = json.loads(json.dumps(to_json(CONFIG))) | {"copy_seconds": 5.0}
    assert config_from_json(data) == CONFIG


def test_an_option_of_another_version_at_its_default_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    config = Config(env="toy/identity", num_policies=3)
    folder.write_config(config)
    data = json.loads(folder.config.read_text())
    data["atari"]["colour_averaging"], data["other"] = False, {"x": 1}
    folder.config.write_text(json.dumps(data))
    assert read_config(tmp_path) == config
    (tmp_path / ".changed").write_text('["num_policies", "other.x"]')
    with pytest.raises(ConfigError, match="unknown fields: other"):
        read_config(tmp_path)
    (tmp_path / ".changed").unlink()  # a run of before
    with pytest.raises(ConfigError, match=r": atari.colour_averaging, other\. "):
        read_config(tmp_path)


def test_the_values_of_a_member_are_hypers_and_shaping(tmp_path):
    run = RunFolder(tmp_path)
    run.write_values(3, 2, {"gamma": 0.99, "shaping.life_lost": -1.0})
    values = {"hypers": {"gamma": 0.99}, "shaping": {"life_lost": -1.0}}
    assert strictly(run.values(3)) == {"member": 3, "generation": 2} | values


def test_a_summary_is_json_whatever_the_numbers_are(tmp_path):
    run = RunFolder(tmp_path)
    run.write_summary({"lag": {"mean": math.nan, "max": 3}, "members": [{"objective": -math.inf}], "n": 1.5})
    known = {"lag": {"mean": None, "max": 3}, "members": [{"objective": None}], "n": 1.5}
    assert strictly(run.summary) == known


def test_a_summary_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    run.write_summary({"frames": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        run.write_summary({"frames": 2})
    assert strictly(run.summary) == {"frames": 1}
    assert list(tmp_path.iterdir()) == [run.summary]


def test_a_file_is_never_written_through_a_link(tmp_path):
    run, other = RunFolder(tmp_path / "run"), tmp_path / "other"
    run.path.mkdir()
    other.write_text("kept")
    (run.path / ".summary.json.new").symlink_to(other)
    run.write_summary({"frames": 1})
    assert other.read_text() == "kept"
    assert not run.summary.is_symlink()
    assert strictly(run.summary) == {"frames": 1}


def test_a_run_of_something_else_than_agents_is_told_apart_from_no_run(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json$"):
        read_config(tmp_path)
    RunFolder(tmp_path).journal.touch()
    with pytest.raises(ConfigError, match=r"no config\.json, .*Python"):
        read_config(tmp_path)


def test_a_run_of_agents_without_its_config_is_told_to_restore_it(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.start({"num_policies": 2}, 0, None)
    journal.close()
    with pytest.raises(ConfigError, match=r"has no config\.json: restore"):
        read_config(tmp_path)


def test_a_folder_that_holds_runs_names_one_and_a_run_without_its_journal_says_what_to_restore(tmp_path):
    run = RunFolder(tmp_path / "b[1]" / "one")
    run.path.mkdir(parents=True)
    run.config.write_text("{}")
    with pytest.raises(ConfigError, match=r"no config\.json; .*one$"):
        read_config(run.path.parent)
    assert run.lacks("journal.jsonl").startswith(f"{run.path} has no journal.jsonl")
    assert "exist" in RunFolder(Path("x" * 5000)).lacks("config.json")
