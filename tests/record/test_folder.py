"""A run's folder: its files, its config as JSON, its summary in one piece."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder, config_from_json, create_run_folder, to_json

CONFIG = Config("toy/identity", num_policies=3, name="demo")


def config(out, **changes):
    return replace(CONFIG, out=out, **changes)


def strictly(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_every_file_has_its_place():
    run = RunFolder(Path("runs/demo"))
    files = [run.config, run.journal, run.summary, run.values(3), run.weights(3), run.weights(12, 500)]
    assert [str(path) for path in files] == [
        "runs/demo/config.json",
        "runs/demo/journal.jsonl",
        "runs/demo/summary.json",
        "runs/demo/policy_03.json",
        "runs/demo/checkpoints/policy_03.safetensors",
        "runs/demo/checkpoints/at_500/policy_12.safetensors",
    ]
    folders = [run.member_events(3), run.population_events]
    assert [str(path) for path in folders] == [
        "runs/demo/policy_03",
        "runs/demo/population",
    ]


def test_saved_weights_are_found_by_member_and_frames(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.saved_members(), run.snapshots()) == ([], [])
    for path in (
        run.weights(0),
        run.weights(12),
        run.weights(3),
        run.weights(7, 90_000),
        run.weights(1, 1_000),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert run.saved_members() == [0, 3, 12]
    assert run.saved_members(90_000) == [7]
    assert run.snapshots() == [1_000, 90_000]


def test_a_new_folder_holds_the_config_that_made_it(tmp_path):
    made, folder = create_run_folder(config(tmp_path))
    assert folder.path == tmp_path / "demo"
    assert made == config(tmp_path)
    assert config_from_json(strictly(folder.config)) == made


def test_a_run_without_a_name_is_named_after_its_environment_and_the_time(tmp_path):
    made, folder = create_run_folder(config(tmp_path, name=None, env="module:Class/x"))
    assert folder.path.name == made.name
    assert made.name.startswith("module-Class-x-2")


def test_an_existing_run_is_replaced_only_if_asked_for(tmp_path):
    _, folder = create_run_folder(config(tmp_path))
    (folder.path / "old").touch()
    with pytest.raises(ConfigError, match=r"exists already.*--overwrite"):
        create_run_folder(config(tmp_path))
    assert (folder.path / "old").exists()
    create_run_folder(config(tmp_path, overwrite=True))
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


def test_a_folder_that_is_no_run_is_never_removed(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"not a run \(it has no config.json\)"):
        create_run_folder(config(tmp_path, overwrite=True))
    assert (tmp_path / "demo" / "thesis.tex").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out .*file cannot be written: Not a directory"):
        create_run_folder(config(tmp_path / "file"))


def test_a_config_of_another_version_is_one_clear_error(tmp_path):
    data = json.loads(json.dumps(to_json(config(tmp_path))))
    assert config_from_json(data) == config(tmp_path)
    data["pbt"]["volatility"] = 1
    with pytest.raises(ConfigError, match="unknown fields: volatility; was it written by another version"):
        config_from_json(data)


def test_the_values_of_a_member_are_hypers_and_shaping(tmp_path):
    run = RunFolder(tmp_path)
    run.write_values(3, 2, {"gamma": 0.99, "shaping.life_lost": -1.0})
    assert strictly(run.values(3)) == {
        "member": 3,
        "generation": 2,
        "hypers": {"gamma": 0.99},
        "shaping": {"life_lost": -1.0},
    }


def test_a_summary_is_json_whatever_the_numbers_are(tmp_path):
    run = RunFolder(tmp_path)
    run.write_summary({"lag": {"mean": math.nan, "max": 3}, "members": [{"objective": -math.inf}], "n": 1.5})
    assert strictly(run.summary) == {
        "lag": {"mean": None, "max": 3},
        "members": [{"objective": None}],
        "n": 1.5,
    }


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
