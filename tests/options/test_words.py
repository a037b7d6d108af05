"""What people type: understood, or answered with the right option in one line."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from pbt_rl.cli.evaluate import EvalCommand
from pbt_rl.cli.resume import parse_resume
from pbt_rl.config import Config, ModelConfig
from pbt_rl.config.command import TrainCommand, parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import option, table
from pbt_rl.options.names import OTHER_NAMES, TWICE
from pbt_rl.options.values import number, whole
from pbt_rl.options.words import parse, split, typed
from pbt_rl.record.folder import to_json


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e6", 10**6), ("1M", 10**6), ("10_000_000", 10**7), ("2.5k", 2500), ("3G", 3 * 10**9), ("-4", -4)],
)
def test_whole_numbers_as_they_are_typed(text, value):
    assert whole(text) == value
    assert whole("9007199254740993") == 9007199254740993  # which no float is


@pytest.mark.parametrize("text", ["1.5", "four", "", "M", "1e400", "nan", "1 000", "0x10"])
def test_what_is_no_whole_number(text):
    with pytest.raises(ValueError, match="5000000, 5e6 or 5M"):
        whole(text)


def test_numbers():
    assert [number(text) for text in ("3e-4", "1k", ".5")] == [3e-4, 1000.0, 0.5]
    with pytest.raises(ValueError, match="finite"):
        number("inf")


def train(*arguments):
    return parse_train(["--env", "toy/identity", *arguments])


def test_values_in_every_spelling():
    config = train(
        *("--train_for_frames", "1M", "--slot-frames=2e5", "--save_every_frames", "10_000"),
        *("--hypers.clip_value", "off", "--pbt.factors", "2", "0.5"),
        *("--pbt.enabled=False", "--figures", "no"),
        *("--pbt.explore-probability", "none", "--name=None"),
    )
    assert (config.train_for_frames, config.slot_frames, config.save_every_frames) == (10**6, 200_000, 10_000)
    assert config.hypers.clip_value == 1e9
    assert config.pbt.factors == (2.0, 0.5)
    assert (config.pbt.enabled, config.figures) == (False, False)
    assert (config.pbt.explore_probability, config.name) == (None, None)
    repeated = typed(table(TrainCommand), split(["--env-option", "a=-1", "--env_option=b=2"]), "p")
    assert repeated == {"env_option": ("a=-1", "b=2")}


def test_the_last_of_two_wins():
    config = parse_train(["--env", "gym/nothing", "--seed", "1", "--seed=2", "--env", "toy/identity"])
    assert (config.env, config.seed) == ("toy/identity", 2)


@pytest.mark.parametrize("words", ["--pbt.tune gamma --pbt.Tune=unroll", "--pbt.factors 2 --pbt.factors 2"])
def test_a_list_is_given_once(words):
    with pytest.raises(ConfigError, match=r"--pbt.(Tune|factors) .*twice"):
        train(*words.split())


def test_words_without_an_option_are_without_its_values():
    words = shlex.split("x --pbt.tune a b --seed -1 --pbt.Tune=c d --pbt.factors -3 --show")
    assert split(words).without({"pbt.tune", "pbt.factors"}).words == ["x", "--seed", "-1", "--show"]


def test_every_foreign_name_leads_to_an_option():
    known = table(TrainCommand).keys()
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & known
    assert {OTHER_NAMES[name] for name in TWICE} == {"hypers.value-coef"}


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError) as error:
        train("--lr", "1", "--num-policies", "many", "--no-such", "x", "--name")
    wrong = ["--lr", "--num-policies many", "--no-such", "--name"]
    assert re.findall(r"^[^-]*(--[a-z-]+(?: many)?)", str(error.value), re.MULTILINE) == wrong


def test_a_line_is_split_without_a_table_of_options():
    line = split(shlex.split("a --Seed -1 --pbt.tune=x --no-figures b --pbt_x c -h --seed 2 --seed"))
    assert line.head == ("a",)
    assert line.names == ["seed", "pbt.tune", "figures", "pbt-x", "", "seed", "seed"]
    assert (line.last("seed"), line.last("pbt.tune"), line.last("name")) == ("2", "x", None)
    assert line.asks_help
    assert split(line.words) == line


def test_positional_words():
    assert parse(EvalCommand, "eval", ["--greedy", "runs/x"]) == EvalCommand(Path("runs/x"), greedy=True)
    with pytest.raises(ConfigError, match=r"^RUN .*eval RUN"):
        parse(EvalCommand, "eval", ["--greedy"])
    with pytest.raises(ConfigError, match=r"^'b' "):
        parse(EvalCommand, "eval", ["a", "b"])


@dataclass(frozen=True)
class Inner:
    limit: float = option(1.0, at_least=0, at_most=1e9, off="off")


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"] = "a"
    many: tuple[int, ...] = ()
    repeated: tuple[str, ...] = option((), repeated=True)
    path: Path | None = None
    switch: bool = False
    inner: Inner = field(default_factory=Inner)


def test_every_type_is_read():
    words = "--kind b --many 1k -2 --repeated x --repeated=y --path none --no-switch --inner.limit OFF"
    assert parse(Outer, "p", words.split()) == Outer("b", (1000, -2), ("x", "y"), inner=Inner(1e9))
    found = typed(table(Outer), split(["--switch=off", "--many", "--path=a"]), "p")
    assert found == {"switch": False, "many": (), "path": Path("a")}


def test_a_run_in_a_folder_whose_name_no_run_may_have_is_renamed_first(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_json(Config("toy/identity"))))
    with pytest.raises(ConfigError, match=r"my run .*rename"):
        parse_resume(folder, [])
    assert parse_resume(folder.rename(tmp_path / "my_run"), []).name == "my_run"


# -- options over those that a run or a file has already ----------------------------------------------------


def recorded(folder, **options):
    config = Config(name=folder.name, out=folder.parent, **options)
    (folder / "config.json").write_text(json.dumps(to_json(config)))
    return config


def test_a_run_that_was_made_elsewhere_goes_on_if_it_is_trusted(tmp_path):
    recorded(tmp_path, env="gym/my:E-v0", env_option=("path=x", "size=3"))
    assert parse_resume(tmp_path, ["--trust"]).env_options.keywords == {"size": 3, "path": "x"}
    with pytest.raises(ConfigError, match="--trust"):
        parse_resume(tmp_path, ["--env", "gym/my:E-v0", "--env-option", "size=4"])


def test_trackers_of_a_run_that_goes_on_are_those_that_are_typed(tmp_path):
    recorded(tmp_path, env="toy/identity", track=("csv",))
    assert parse_resume(tmp_path, ["--track", "csv"]).track == ("csv",)
    assert parse_resume(tmp_path, ["--track", "my:Own"]).track == ("my:Own",)
    assert parse_resume(tmp_path, []).track == ("csv",)


def test_a_tracker_or_a_cluster_that_only_a_config_names_is_not_followed(tmp_path):
    before = recorded(tmp_path, env="toy/identity", track=("csv", "my:Own"), nodes="ray:host:6379")
    named = "--track csv --track my:Own --nodes ray:host:6379"
    with pytest.raises(ConfigError, match=f" {named}, "):
        parse_resume(tmp_path, [])
    with pytest.raises(ConfigError, match=" --track csv --track my:Own, "):
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
    assert parse_train(["--config", str(path), "--init-from", "runs/b"]).init_from == ("runs/b",)
    assert parse_train(["--config", str(path)]).init_from == ("runs/a",)
