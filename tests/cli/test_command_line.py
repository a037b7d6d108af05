"""The command line: its options, its defaults, and one clear answer to every mistake."""

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pbt_rl import __version__
from pbt_rl.cli import EXIT_USER_ERROR
from pbt_rl.config import Config, Hypers, LearnerConfig, ModelConfig
from pbt_rl.config.command import TrainCommand, parse_train
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.envs.lookup import probe
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import field_docs, table
from pbt_rl.run.probe import describe_duration
from tests.helpers.runs import HANG_SECONDS, ROOT, python, start

OPTIONS = Path(__file__).parent / "options.txt"


def options(text):
    """Returns the options of a help text, one per line: `--name KIND (allowed; default: ...)`."""
    found = []
    for line in text.splitlines():
        if shown := re.match(r"  (--.+?[^.])(?:  +(.*))?$", line):
            found.append([shown[1], shown[2] or ""])
        elif found and line.startswith(" " * 10):
            found[-1][1] += f" {line.strip()}"
    hint = re.compile(r"\((?:(?:[^()]|\([^()]*\))*; )?(?:default:[^()]*|required|repeatable)\)$")
    return "".join(f"{name} {hint.search(text)[0]}\n" for name, text in found)


def names(text):
    return set(re.findall(r"^  (--[a-z0-9.-]+)", text, re.MULTILINE))


def test_the_options_are_frozen(pbt_rl, pytestconfig):
    code, out, err = pbt_rl("train", "--help-all")
    assert (code, err) == (0, "")
    if pytestconfig.getoption("--rewrite-golden"):
        OPTIONS.write_text(options(out))
    assert options(out) == OPTIONS.read_text(), f"if this is meant: pytest {__file__} --rewrite-golden"


def test_plain_help_shows_the_usual_options_and_how_to_see_more(pbt_rl):
    code, out, err = pbt_rl("train", "--help")
    assert (code, err) == (0, "")
    assert 25 <= len(names(out)) <= 50
    assert not {name for name in names(out) if name.startswith(("--atari.", "--dmlab.", "--search."))}
    assert out.splitlines()[-1].strip().startswith("--help-all")
    shown = options(out.partition("These are")[0])
    assert re.search(r"learning-rate FLOAT \(0 to 1; tuned: .*1e-06 to 0\.01, log; ", shown)
    assert re.search(r"gamma FLOAT \(0 to 1; if tuned: .*0\.8 to 0\.9999, one-minus; ", shown)


def test_plain_help_shows_what_the_readme_names(pbt_rl):
    readme = (ROOT / "README.md").read_text()
    words = re.findall(r"--[a-z][a-z0-9.-]*[a-z0-9]", readme)
    named = {f"--{option}" for option in table(TrainCommand)} & {*words}
    assert len(named) > 10
    assert named <= names(pbt_rl("train", "--help")[1])


def test_help_of_an_algorithm_leaves_out_hypers_that_it_does_not_read(pbt_rl):
    shown = names(pbt_rl("train", "--algo", "a3c", "--help-all")[1])
    assert "--hypers.rmsprop-alpha" in shown
    assert not shown & {"--hypers.clip-ratio", "--hypers.adam-beta1", "--hypers.vtrace-c"}


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["--env", "gym/CartPole-v1"], set()),
        (["--env", "atari/pong"], {"atari"}),
        (["--env=dmlab30"], {"dmlab"}),
        (["--env", "pettingzoo/classic/connect_four_v3"], {"matchup"}),
    ],
)
def test_help_of_an_environment_adds_the_options_of_its_family(pbt_rl, arguments, added):
    plain, more = (names(pbt_rl("train", *a, "--help")[1]) for a in ([], arguments))
    assert {name[2:].partition(".")[0] for name in more - plain} == added
    assert more >= plain
    assert len(more - plain) != 1, "a family has several options"


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["--pbt.exploit", "t-test"], {"--pbt.t-test-level", "--pbt.exploit-option"}),
        (["--pbt.explore=resample"], {"--pbt.factors", "--pbt.explore-probability", "--pbt.explore-option"}),
        (["--pbt.exploit", "my_rules:Best"], {"--pbt.exploit-option"}),
        (["--controller", "schedule"], {"--schedule.run", "--schedule.member", "--schedule.hold-final"}),
    ],
)
def test_help_of_a_rule_or_controller_adds_its_options(pbt_rl, arguments, added):
    plain, more = (names(pbt_rl("train", *a, "--help")[1]) for a in ([], arguments))
    assert more - plain == added


def test_help_shows_the_values_of_the_recipe_as_defaults(pbt_rl):
    for words, epochs in ((["--env", "gym/CartPole-v1"], 4), ([], 1)):
        shown = " ".join(pbt_rl("train", *words, "-h")[1].split())
        assert re.search(rf"--learner\.epochs INT [^-]*default: {epochs}\)", shown)


def test_every_option_of_the_config_has_help_and_can_be_set():
    docs = {name: text for kind in (Config, PbtConfig) for name, text in field_docs(kind).items()}
    assert "frames" in docs["period_frames"]
    groups = (type(group) for group in Config("toy/x").groups())
    for kind in (Config, PbtConfig, *groups, Hypers, ModelConfig, LearnerConfig):
        for f in dataclasses.fields(kind):
            assert field_docs(kind).get(f.name) or dataclasses.is_dataclass(f.default_factory), (kind, f.name)


def test_the_recipe_gives_defaults_and_the_command_line_wins(tmp_path):
    config = parse_train(["--env", "gym/CartPole-v1", "--learner.batch", "512"])
    assert config.model.encoder == "mlp"  # the recipe's
    assert config.learner.epochs == 4
    assert config.learner.batch == 512  # the user's
    assert config.num_policies == 4  # nobody's
    other = parse_train(["--env=gym/Pendulum-v1", "--hypers.learning-rate=0.001"])
    assert other.learner.normalize_observations
    assert other.hypers.learning_rate == 0.001
    (tmp_path / "c.toml").write_text('env = "toy/shaped"\n[shaping]\nbait = 0.7\nother = 1\n')
    config = parse_train(["--config", str(tmp_path / "c.toml"), "--shaping.bait", "2e-1"])
    assert config.shaping == ("other=1", "bait=0.2")


@pytest.mark.parametrize(
    ("arguments", "enabled"),
    [
        ([], True),
        (["--pbt.enabled", "false"], False),
        (["--pbt.no-enabled"], False),
        (["--pbt.enabled", "True"], True),
        (["--pbt.enabled"], True),
    ],
)
def test_pbt_is_switched_in_every_usual_way(arguments, enabled):
    config = parse_train(["--env", "toy/identity", *arguments, "--num-policies", "3"])
    assert config.pbt.enabled is enabled
    assert config.num_policies == 3


def test_show_prints_plan_values_and_what_differs_and_starts_nothing(pbt_rl, tmp_path):
    given = ["--env", "toy/shaped", "--actors", "3", "--devices", "cpu", "--pbt.factors", "1.3", "0.7"]
    code, out, err = pbt_rl("train", *given, "--show", "--no-probe")
    assert (code, err) == (0, "")
    plan, _, options = out.partition("that differ")
    assert re.search(r"\b0 .*\bcpu: .*0, 1, 2, 3; 48 .*\b3 .*\b2 .* 8\b", plan)
    assert re.search(r"\n.*\b5,000\b.*\b4,000\b.*\b24\b.*: --controller pbt", plan)
    assert re.search(r"\nlearning_rate +0\.002 +near member 0 +1e-06\.\.0\.01 +0\.\.1\n", plan)
    assert re.search(r"\nnot tuned: gamma 0.99, gae_lambda 0.95, .*, unroll 16\n", plan)
    assert "rmsprop_alpha" not in out, "appo does not use it"
    shown = [line.strip() for line in options.splitlines()[1:]]
    assert {"--env toy/shaped", "--actors 3", "--pbt.factors 1.3 0.7", "--learner.batch 512"} <= set(shown)
    again = parse_train([word for line in shown for word in line.split()])
    assert again == parse_train(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("toy/shaped --shaping.bait 0.3", r"\nshaping.bait +0\.3 +near member 0 +0\.003\.\.30"),
        ("toy/shaped --shaping bait=0.3 --pbt.no-enabled", "not tuned: .*shaping.bait 0.3\n"),
        ("toy/shaped --shaping.bait=0 --pbt.tune shaping.bait=-1:1", r"\nshaping.bait +0 +-1:1:linear"),
    ],
)
def test_shaping_begins_at_what_is_given(pbt_rl, given, said):
    _, out, err = pbt_rl("train", "--devices", "cpu", "--show", "--no-probe", "--env", *given.split())
    assert re.search(said, out + err)


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_show_prints_a_file_that_can_be_given_back(pbt_rl, tmp_path, form):
    given = ("--env", "toy/shaped", "--seed=3", "--devices=cpu")
    code, out, err = pbt_rl("train", *given, "--show", "--format", form)
    assert (code, err) == (0, "")
    (tmp_path / f"c.{form}").write_text(out)
    assert pbt_rl("train", "--config", f"c.{form}", "--show", "--format", form)[1] == out
    assert parse_train(["--config", f"c.{form}"]).seed == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--train-for-frames 1M", r"[\d.]+ (s|min|h).* 1\.00M .*\b2 .*[\d,]+ frames/s"),
        ("--hours 0.001", r"[\d.]+k? .*\b2 .*\b3\.6 s.* [\d,]+ frames/s"),
        ("--controller asha", "at most"),
        ("--env gym/CartPole-v1 --evaluate-every-frames 1k --evaluate-video", r"[\d,]+ frames/s"),
    ],
)
def test_the_plan_ends_with_an_estimate_of_time_from_a_trial(pbt_rl, monkeypatch, given, told):
    monkeypatch.setattr("pbt_rl.run.probe.PROBE_SECONDS", 0.1)
    small = "--devices cpu --mode serial --num-policies 2 --actors 1"
    env = "" if "--env " in given else "--env toy/identity"
    code, out, err = pbt_rl("train", *f"{env} {small} {given}".split(), "--show")
    assert code == 0, err
    assert re.search(told, out.splitlines()[-1])
    assert "--no-probe" in err
    assert not Path("runs").exists()


def test_an_estimate_leaves_out_what_is_sampled_before_the_first_batch_is_learned(monkeypatch):
    def trial(_config, callbacks):
        for second in range(30):
            frames = 10_000 * min(second, 3) + 2_000 * max(0, second - 3)
            busy = {"environment": 1.0, "learning": float(second > 3)}
            view = SimpleNamespace(
                training_seconds=float(second), frames=frames, busy_threads=busy, actors_restarted=0
            )
            if callbacks.on_report(view):
                return 0
        raise AssertionError("the trial did not end")

    monkeypatch.setattr("pbt_rl.run.probe.train", trial)
    config = parse_train(["--env", "toy/identity"])
    assert ", at 2,000 frames/s in all" in describe_duration(config, probe(config.env, config.env_options))


def test_a_trial_that_fails_or_learns_nothing_gives_no_estimate(pbt_rl, monkeypatch):
    plan = ("train", "--env", "toy/identity", "--devices", "cpu", "--show")
    too_large = ConfigError("this run cannot fit into memory")

    def restarts(_config, callbacks):
        callbacks.on_report(Mock(frames=9, training_seconds=1.0, actors_restarted=2, busy_threads={}))
        return 0

    for trial, why in (
        (Mock(side_effect=restarts), "environment failed"),
        (Mock(side_effect=too_large), str(too_large)),
        (Mock(return_value=0), "no batch"),
    ):
        monkeypatch.setattr("pbt_rl.run.probe.train", trial)
        code, out, _ = pbt_rl(*plan)
        assert (code, trial.call_count) == (0, 1)
        assert re.search(f"no estimate .*{why}", out.splitlines()[-1])


def test_an_environment_that_cannot_be_made_is_not_tried(pbt_rl, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.probe.train", None)
    code, out, err = pbt_rl("train", "--env", "gym/Nothing-v0", "--show")
    assert (code, out) == (2, "")
    assert "trial" not in err


def test_an_adapted_learning_rate_is_not_tuned(pbt_rl):
    shown = "--env toy/identity --devices cpu --mode sync --learner.lr-schedule kl-adaptive --show --no-probe"
    code, out, _ = pbt_rl("train", *shown.split())
    assert code == 0
    assert "not tuned: learning_rate 0.002, " in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--controller pbt --train-for-frames 40000", "40,000 frames"),
        ("--controller pbt --train-for-frames 40001", ""),
        ("--train-for-frames 40001", "after 1 comparison"),
        ("--train-for-frames 220000", "after 9 comparisons"),
        ("--train-for-frames 220001", ""),
        ("--train-for-frames 220001 --pbt.period-growth 1.1", "after 7 comparisons"),
        ("--train-for-frames 220001 --pbt.frequencies 1 10 11", "--pbt.frequencies 11"),
        ("--train-for-frames 220000 --pbt.frequencies 1 10 11", "--pbt.frequencies 10 and 11"),
    ],
)
def test_comparisons_for_which_the_frames_do_not_suffice_are_told(pbt_rl, given, said):
    """The first is at 40,000 frames, and one every 20,000 frames after it: the tenth is at 220,000."""
    shown = "--env toy/identity --num-policies 12 --controller mf-pbt --pbt.start-frames 40000"
    _, out, _ = pbt_rl(
        "train", *shown.split(), "--pbt.period-frames", "20000", *given.split(), "--show", "--no-probe"
    )
    told = [line for line in out.splitlines() if line.startswith("note:") and "compar" in line]
    assert len(told) == bool(said)
    assert all(said in line for line in told)


def test_commands_version_and_help(pbt_rl, tmp_path):
    assert pbt_rl("--version") == (0, f"pbt-rl {__version__}\n", "")
    code, out, _ = pbt_rl("envs", "--help")
    assert code == 0
    assert out.startswith("usage: pbt-rl envs ")
    code = "import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module('pbt_rl', run_name='__main__')"
    assert python(code, tmp_path) == f"pbt-rl {__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["pbt-rl"] == "pbt_rl.cli:main"
    assert pbt_rl("--help")[0] == 0
    assert pbt_rl()[0] == EXIT_USER_ERROR


def test_envs_lists_what_is_here_without_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['pbt-rl', 'envs']\n"
        "from pbt_rl.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code)\n"
    )
    out = python(code, tmp_path)
    assert "toy/  " in out
    assert "CartPole-v1" in out
    assert out.endswith("False 0\n")


def test_overwrite_replaces_a_run(pbt_rl, tmp_path):
    arguments = ("--env", "toy/identity", "--mode", "serial", "--name", "x", "--num-policies", "1")
    arguments += ("--train-for-frames", "100", "--actors", "1")
    assert pbt_rl("train", *arguments)[0] == 0
    (tmp_path / "runs" / "x" / "old").touch()
    code, _, err = pbt_rl("train", *arguments, "--resume", "no")
    assert code == EXIT_USER_ERROR
    assert re.search("--resume .*--name.*--overwrite", err)
    code, out, _ = pbt_rl("train", *arguments)
    assert (code, "--train-for-frames 100 " in out) == (0, True)
    assert pbt_rl("train", *arguments, "--overwrite")[0] == 0
    assert not (tmp_path / "runs" / "x" / "old").exists()


def test_the_config_of_a_run_that_replaced_another_run_deletes_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"env": "toy/identity", "overwrite": true}')
    (tmp_path / "mine.json").write_text('{"env": "toy/identity", "overwrite": true}')
    assert not parse_train(["--config", str(tmp_path / "config.json")]).overwrite
    assert parse_train(["--config", str(tmp_path / "config.json"), "--overwrite"]).overwrite
    assert parse_train(["--config", str(tmp_path / "mine.json")]).overwrite


@pytest.mark.long
def test_packages_of_the_user_do_no_harm(tmp_path):
    """A working directory with `envs`, `algos` and `scripts` of its own, and files named as installed modules."""
    for name in ("torch", "numpy", "gymnasium", "safetensors"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('in the place of what is installed')\n")
    for name in ("envs", "algos", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('imported')\n")
    few = ("--num-policies=2", "--train-for-frames=2000", "--name=x")
    run = start(tmp_path, "train", "--env=toy/identity", *few)
    assert run.wait() == 0, run.err
    assert run.err == ""
    assert run.summary["ended"] == "frames"


@pytest.mark.parametrize("arguments", ["train --help", "envs"])
def test_a_reader_that_stops_reading_is_no_traceback(arguments, tmp_path):
    command = f"{sys.executable} -m pbt_rl {arguments}"
    piped = f"set -o pipefail; {{ sleep 0.2; {command}; }} | true"
    command = ["bash", "-c", piped]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_run_needs_no_open_streams(tmp_path):
    options = "--env toy/identity --mode serial --num-policies 2 --train-for-frames 2000 --no-figures"
    command = f"{sys.executable} -m pbt_rl train {options} --name closed <&- >&- 2>&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "runs" / "closed" / "summary.json").read_text())["ended"] == "frames"


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (["--env", "toy/identity"], 1),
        (["--env", "toy/identity", "--num-polices", "4"], 0),
        (["--env", "toy/identity", "--num-policies", "many"], 0),
        (["--env", "tyo/identity"], 0),
        (["--env", "toy/identity", "--show", "--no-probe"], 0),
        (["--env", "toy/identity", "--mode", "serial"], 0),
        (["--num-policies", "4"], 0),
        (["--config", "serial.toml"], 0),
        (["--config", "serial.toml", "--mode", "sync"], 1),
    ],
)
def test_a_learner_begins_to_load_once_the_command_is_understood(
    monkeypatch, pbt_rl, arguments, started, tmp_path
):
    begun, ended, given = [], [], []
    (tmp_path / "serial.toml").write_text('env = "toy/identity"\nmode = "serial"\n')

    class Spare:
        def __init__(self, _run):
            begun.append(self)

        def discard(self):
            ended.append(self)

    monkeypatch.setattr("pbt_rl.cli.train.spare_learner", Spare)
    monkeypatch.setattr("pbt_rl.run.train.train", lambda _config, spare: given.append(spare) or 0)
    pbt_rl("train", *arguments)
    assert len(begun) == started
    assert ended == begun
    if given:
        assert given == (begun or [None])


def test_a_working_directory_that_was_deleted_is_one_clear_line(tmp_path):
    made = f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone"
    script = f"{made} && PYTHONPATH={ROOT} {sys.executable} -m pbt_rl envs"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch("pbt-rl: .*directory.* deleted.*", done.stderr.splitlines()[-1])
