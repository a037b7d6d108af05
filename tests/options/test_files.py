import json
import math
import tomllib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from pbt_rl.config import Config
from pbt_rl.config.command import make_config, parse_train
from pbt_rl.config.start_values import read_table
from pbt_rl.controllers.lookup import build_exploit
from pbt_rl.envs.lookup import keywords
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.files import checked, read_file, written
from pbt_rl.options.values import duration
from pbt_rl.record.folder import config_from_json, to_json

ODD = {
    "env": "toy/identity",
    "name": "a",
    "out": 'quo"te\\ é \x7f\n',
    "learner": {"batch": 512, "lr_schedule_kl": 1e-9},
    "pbt": {"tune": ["learning_rate=1e-5:1e-2"], "factors": [2.0, 0.5], "enabled": False},
    "hypers": {"learning_rate": 1e-06, "clip_value": 1e9},
}


def of_run(options, path=None):
    return checked(options, table(Config), path)


def read_config(path):
    return of_run(read_file(path), path)


def file(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_text_for_an_environment_stays_a_text_though_it_looks_like_a_number():
    named = {"a": "1", "b": "true", "c": "null", "d": '"x"', "e": "8x8", "f": 1, "g": "1e3", "h": [1, "2"]}
    assert keywords(of_run({"env_option": named})["env_option"]) == named
    of_a_file = of_run({"env_option": named | {"i": "5M", "j": "None"}})
    assert keywords(of_a_file["env_option"]) == named | {"i": "5M", "j": "None"}


@pytest.mark.parametrize("form", ["json", "toml", "yaml"])
def test_a_config_that_was_written_is_read_back(tmp_path, form):
    for config in (make_config(**ODD), make_config(env="atari/pong")):
        path = file(tmp_path, f"c.{form}", written(to_json(config), form))
        assert make_config(**read_config(path)) == config
        assert parse_train(["--config", str(path)]) == config


TOML = """
env = "gym/CartPole-v1"
train-for-frames = "1M"
[learner]
batch = 512
[hypers]
clip_value = "off"
"""
YAML = """
env: gym/CartPole-v1
train_for_frames: 1e6
learner: {batch: 512}
hypers.clip-value: off
"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.YML", YAML)])
def test_a_file_lies_over_the_recipes_and_the_command_line_over_it(tmp_path, name, text):
    path = file(tmp_path, name, text)
    config = parse_train([f"--config={path}", "--learner.epochs", "7"])
    assert (config.env, config.train_for_frames, config.learner.batch) == ("gym/CartPole-v1", 10**6, 512)
    assert config.hypers.clip_value == 1e9
    assert (config.learner.epochs, config.learner.minibatches) == (7, 4)  # the user's, the recipe's
    other = parse_train([f"--config={path}", "--env=toy/identity", "--learner.batch=64"])
    assert (other.env, other.learner.batch, other.learner.minibatches) == ("toy/identity", 64, 2)


@pytest.mark.parametrize(("written_", "widths"), [("64", (64,)), ("[64]", (64,)), ("[64, 32]", (64, 32))])
def test_widths_of_a_network_are_a_number_or_a_list(tmp_path, written_, widths):
    path = file(tmp_path, "a.toml", f'env = "toy/identity"\n[model]\nhidden = {written_}\n')
    config = parse_train([f"--config={path}"])
    assert config.model.hidden == widths
    saved = json.loads(json.dumps(to_json(config)))
    assert saved["model"]["hidden"] == (64 if widths == (64,) else [64, 32])
    assert config_from_json(saved) == config
    typed = parse_train(["--env=toy/identity", "--model.hidden", *map(str, widths)])
    assert typed.model == config.model
    assert make_config(env="toy/identity", model={"hidden": 64}).model.hidden == (64,)


def test_what_is_typed_wins_over_repeated_options_too(tmp_path):
    text = "env: gym/CartPole-v1\nenv_option: [max_episode_steps=5, render_mode=null]\n"
    text += "pbt: {exploit: sigma-gap, exploit_option: {sigmas: 0.4, relative: 0.2}}\n"
    path = file(tmp_path, "a.yaml", text)
    typed = ["--env-option", "max_episode_steps=7", "--pbt.exploit-option", "sigmas=0.7"]
    config = parse_train([f"--config={path}", *typed])
    assert config.env_options.keywords == {"max_episode_steps": 7, "render_mode": None}
    assert (build_exploit(config.pbt).sigmas, build_exploit(config.pbt).relative) == (0.7, 0.2)


@pytest.mark.parametrize("form", ["json", "toml", "yaml"])
def test_a_file_that_nests_too_deeply_is_refused(tmp_path, form):
    nested = {"json": '{"a":', "toml": "a = ", "yaml": "a: "}[form] + "[" * 100_000 + "]" * 100_000
    path = file(tmp_path, f"c.{form}", nested + "}" * (form == "json"))
    with pytest.raises(ConfigError, match=f"{path} .*{form.upper()}"):
        read_file(path)


def test_what_is_none_is_left_out_of_toml():
    text = written(to_json(make_config(env="toy/identity")), "toml")
    assert "name" not in tomllib.loads(text)
    assert json.loads(written({"a": None, "b": {"c": None, "d": (1,)}}, "json")) == {"b": {"d": [1]}}


# -- what editors, spreadsheets and shells make of values ---------------------------------------------------


TIMES = {"1800": 1800, "90s": 90, "30m": 1800, "30 min": 1800, "1.5h": 5400, "1h30m": 5400, "1e3": 1000}


@pytest.mark.parametrize(("text", "seconds"), (TIMES | {"0:30:00": 1800}).items())
def test_times(text, seconds):
    assert duration(text, 1) == seconds
    assert duration(text, 3600) == (float(text) if text[-1].isdigit() and ":" not in text else seconds / 3600)


@pytest.mark.parametrize("text", ["30M", "2k", "1g", "soon", "1:xx", "²:00", "inf", "nan", ""])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match=r"time|finite"):
        duration(text, 1)


def test_times_on_the_command_line_and_in_files(tmp_path):
    (tmp_path / "c.yaml").write_text("env: toy/identity\ntrain_for_seconds: 30m\n")
    assert read_config(tmp_path / "c.yaml")["train_for_seconds"] == 1800
    (tmp_path / "c.yaml").write_text("env: toy/identity\nhours: 1:30:00\n")  # 5400, by YAML 1.1
    assert read_config(tmp_path / "c.yaml")["hours"] == 1.5
    assert parse_train(["--env", "toy/identity", "--hours", "30m", "--train-for-frames", "1m"]).hours == 0.5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_of_the_byte_order_are_no_text(tmp_path, encoding):
    for name, text in {"a.toml": "seed = 3", "a.json": '{"seed": 3}', "a.yaml": "seed: 3"}.items():
        (tmp_path / name).write_text(text, encoding=encoding)
        assert read_config(tmp_path / name) == {"seed": 3}
    (tmp_path / "a.json").write_text('[{"gamma": 0.9}]', encoding=encoding)
    assert read_table(tmp_path / "a.json") == ("gamma=0.9",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"seed": 1, "pbt": {"copy": "both", "copy": "weights"}}'),
        ("a.yaml", "learner:\n  batch: 512\n  batch: 256\n"),
        ("a.toml", "seed = 1\nseed = 2"),
        ("a.yaml", "num_policies: 2\nnum-policies: 3\n"),
        ("a.json", '{"learner.batch": 512, "learner": {"batch": 256}}'),
    ],
)
def test_a_name_that_is_given_twice_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"twice|overwrite"):
        read_config(tmp_path / name)


def test_yaml_keeps_texts_and_reads_numbers(tmp_path):
    text = 'env_option: {level: 1e5, name: "1e5"}\n'
    (tmp_path / "a.yaml").write_text(text)
    assert read_config(tmp_path / "a.yaml")["env_option"] == ("level=100000.0", 'name="1e5"')


def test_names_are_given_once_and_gigabytes_with_their_unit():
    config = parse_train(["--env", "toy/identity", "--dmlab.level-cache-gb", "5GB"])
    assert config.dmlab.level_cache_gb == 5
    for wrong in (["--pbt.tune", "gamma", "gamma"], ["--dmlab.level-cache-gb", "5M"]):
        with pytest.raises(ConfigError, match=r"once|gigabytes"):
            parse_train(["--env", "toy/identity", *wrong])


TABLE = ("learning_rate=0.001,gamma=0.99", "learning_rate=0.0005,gamma=0.98")


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate,gamma\n0.001,0.99\n0.0005,0.98\n",
        "learning_rate;gamma\r\n0,001;0,99\r\n0,0005;0,98\r\n",
        "learning_rate\tgamma\n0.001\t0.99\n0.0005\t0.98\n",
        ",learning_rate,gamma\n0,0.001,0.99\n1,0.0005,0.98\n",
        "Unnamed: 0,learning_rate,gamma\n0,0.001,0.99\n1,0.0005,0.98\n",
        "learning_rate;gamma;\n0,001;0,99;\n0,0005;0,98;\n",
    ],
)
def test_tables_of_spreadsheets(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert read_table(tmp_path / "a.csv") == TABLE


def test_numbers_of_numpy_and_whole_floats():
    given = {
        "num_policies": np.int64(2),
        "train_for_frames": 3e3,
        "save_every_seconds": np.float32(2.5),
        "pbt": {"enabled": np.bool_(True), "factors": np.array([1.5, 0.5])},
        "final_episodes": np.array(4),
        "seed": Decimal(5),
        "control": Fraction(1, 2),
        "init_from": [Path("runs/a")],
        "env_option": {"size": np.int32(3), "places": np.arange(2)},
    }
    found = of_run(given)
    assert found == {
        "num_policies": 2,
        "train_for_frames": 3000,
        "save_every_seconds": 2.5,
        "pbt.enabled": True,
        "pbt.factors": (1.5, 0.5),
        "final_episodes": 4,
        "seed": 5,
        "control": 0.5,
        "init_from": ("runs/a",),
        "env_option": ("size=3", "places=[0, 1]"),
    }
    assert {type(value) for value in found.values()} <= {int, float, bool, tuple}


@pytest.mark.parametrize("value", [2.5, math.nan, math.inf, np.float64(0.5), np.array([1, 2]), True])
def test_what_is_no_whole_number_of_numpy(value):
    with pytest.raises(ConfigError, match="num_policies="):
        of_run({"num_policies": value})


def test_paths_are_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", "/scratch")
    for given, path in {
        "~/runs": tmp_path / "runs",
        "$SCRATCH/a": "/scratch/a",
        "${SCRATCH}/b": "/scratch/b",
    }.items():
        assert of_run({"out": given})["out"] == parse_train(["--env", "toy/identity", f"--out={given}"]).out
        assert str(of_run({"out": given})["out"]) == str(path)
    for given in (
        "s3://bucket/runs", "hdfs:/a", "$NONE/runs", "$(pwd)/runs", "%TMP%/a", "~nobody_of_this_name/runs", "C:/runs",
        "\\\\server\\a", "",
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="out="):
            of_run({"out": given})
        with pytest.raises(ConfigError, match="--out "):
            parse_train(["--env", "toy/identity", "--out", given])


# -- tables of start values ---------------------------------------------------------------------------------


def test_the_forms_of_a_table(tmp_path):
    rows = ("learning_rate=1e-3,gamma=0.9", "", "gamma=1")
    csv = file(tmp_path, "a.csv", "member,learning_rate,gamma\n2,,1\n0,1e-3, 0.9\n")
    assert read_table(csv) == rows
    assert read_table(file(tmp_path, "b.csv", "learning_rate,gamma\n1e-3,0.9\n,\n,1\n")) == rows
    text = '[{"learning_rate": 1e-3, "gamma": 0.9}, {}, {"gamma": 1, "unroll": null}]'
    assert read_table(file(tmp_path, "c.json", text)) == ("learning_rate=0.001,gamma=0.9", "", "gamma=1")


def test_a_config_holds_the_values_and_not_the_file(tmp_path):
    path = file(tmp_path, "a.csv", "gamma\n0.9\n")
    config = make_config(env="toy/identity", pbt={"start_values": [str(path)]})
    assert config.pbt.start_values == ("gamma=0.9",)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", 'gamma\n"0,99"\n', "a comma"),
        ("a.csv", ",gamma\n5,0.9\n", "column 1 "),
        ("a.csv", "gamma,gamma\n0.9,0.8\n", "'gamma' twice"),
        ("a.csv", "gamma,unroll\n0.9\n", "cells"),
        ("a.csv", "member,gamma\n0,1\n0,1\n", "member 0 twice"),
        ("a.csv", "member,gamma\nx,1\n", "member 'x'"),
        ("a.csv", 'gamma\n"0.9"1\n', "table"),
        ("a.csv", "member,gamma\n100000,1\n", "member '100000'"),
        ("a.csv", f"member,gamma\n{'9' * 5000},1\n", "9999"),
        ("a.json", "{}", "list"),
        ("a.json", "[1", "table"),
        ("a.txt", "x", "FILE.csv, FILE.json"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, name, text, said):
    path = file(tmp_path, name, text)
    with pytest.raises(ConfigError, match=f"--pbt.start-values {path} .*{said}"):
        read_table(path)
