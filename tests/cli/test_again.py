"""Options over those that a run or a file has already: what is typed wins, in every spelling."""

import json
import re

import pytest

from pbt_rl.cli.resume import parse_resume
from pbt_rl.cli.train import parse_train
from pbt_rl.config import Config, ModelConfig
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import to_json


def recorded(folder, **options):
    config = Config(name=folder.name, out=folder.parent, **options)
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    return config


def test_a_run_that_was_made_elsewhere_goes_on_if_it_is_trusted(tmp_path):
    recorded(tmp_path, env="gym/my:E-v0", env_option=("path=x", "size=3"))
    assert parse_resume(tmp_path, ["--trust"]).env_options.keywords == {"size": 3, "path": "x"}
    with pytest.raises(ConfigError, match=re.escape("add --trust")):
        parse_resume(tmp_path, ["--env", "gym/my:E-v0", "--env-option", "size=4"])


def test_trackers_of_a_run_that_goes_on_are_those_that_are_typed(tmp_path):
    recorded(tmp_path, env="toy/identity", track=("csv",))
    assert parse_resume(tmp_path, ["--track", "csv"]).track == ("csv",)
    assert parse_resume(tmp_path, ["--track", "my:Own"]).track == ("my:Own",)
    assert parse_resume(tmp_path, []).track == ("csv",)


def test_a_tracker_or_a_cluster_that_only_a_config_names_is_not_followed(tmp_path):
    before = recorded(tmp_path, env="toy/identity", track=("csv", "my:Own"), nodes="ray:host:6379")
    named = "--track csv --track my:Own --nodes ray:host:6379"
    with pytest.raises(ConfigError, match=f"names {named}, which"):
        parse_resume(tmp_path, [])
    with pytest.raises(ConfigError, match="names --track csv --track my:Own, which"):
        parse_resume(tmp_path, ["--nodes", "ray:host:6379"])
    for words in (["--trust"], named.split()):
        config = parse_resume(tmp_path, words)
        assert (config.track, config.nodes) == (before.track, before.nodes)


def test_what_is_exchanged_needs_no_trust(tmp_path):
    recorded(tmp_path, env="toy/identity", track=("my:Own",), nodes="ray:host:6379")
    config = parse_resume(tmp_path, ["--track", "csv", "--nodes", "ray:auto"])
    assert (config.track, config.nodes) == (("csv",), "ray:auto")


def test_a_part_of_ones_own_is_given_again_in_any_spelling(tmp_path):
    recorded(tmp_path, env="toy/identity", model=ModelConfig(policy_head="my:head"))
    assert parse_resume(tmp_path, ["--model.policy_head=my:head"]).model.policy_head == "my:head"


def test_sources_that_are_typed_take_the_place_of_those_of_a_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('env = "toy/identity"\nnum_policies = 2\ninit_from = ["runs/a"]\n')
    assert parse_train(["--config", str(path), "--init-from", "runs/b"])[0].init_from == ("runs/b",)
    assert parse_train(["--config", str(path)])[0].init_from == ("runs/a",)
