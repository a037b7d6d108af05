"""The command line: its options, its defaults, and one clear answer to every mistake."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pbt_rl.cli import EXIT_USER_ERROR, main, parse_train
from tests.helpers.runs import ROOT, python, start

OPTIONS = Path(__file__).parent / "cli_options.txt"


@pytest.fixture
def pbt_rl(monkeypatch, tmp_path, capsys):
    """Call the command in an empty folder: returns exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call


def options(text):
    """The options of a help text: `--name KIND (default: ...)`, one a line."""
    found = []
    for framed in text.splitlines():
        line = framed.strip("│ ")
        if re.match("[│ ] {1,2}--[a-z]", framed):
            found.append(line)
        elif found and (match := re.search(r"\((default:.*|required\))$", line)):
            found[-1] += f" ({match[1]}"
        elif found and found[-1].endswith("default:"):
            found[-1] += f" {line}"
    return "\n".join(found) + "\n"


def test_the_options_are_frozen(pbt_rl):
    code, out, err = pbt_rl("train", "--help")
    assert (code, err) == (0, "")
    assert options(out) == OPTIONS.read_text(), f"if this is meant, store in {OPTIONS.name}:\n{options(out)}"


def test_the_recipe_gives_defaults_and_the_command_line_wins():
    config, show = parse_train(["--env", "gym/CartPole-v1", "--learner.batch", "512"])
    assert not show
    assert config.model.encoder == "mlp"  # the recipe's
    assert config.learner.epochs == 4
    assert config.learner.batch == 512  # the user's
    assert config.num_policies == 4  # nobody's
    other, _ = parse_train(["--env=gym/Pendulum-v1", "--hypers.learning-rate=0.001"])
    assert other.learner.normalize_observations
    assert other.hypers.learning_rate == 0.001


@pytest.mark.parametrize(
    ("arguments", "enabled"),
    [
        ([], True),
        (["--pbt.enabled", "False"], False),
        (["--pbt.enabled", "false"], False),
        (["--pbt.no-enabled"], False),
        (["--pbt.enabled", "True"], True),
        (["--pbt.enabled"], True),
    ],
)
def test_pbt_is_switched_in_every_usual_way(arguments, enabled):
    config, _ = parse_train(["--env", "toy/identity", *arguments, "--num-policies", "3"])
    assert config.pbt.enabled is enabled
    assert config.num_policies == 3


def test_show_prints_config_and_plan_and_starts_nothing(pbt_rl, tmp_path):
    code, out, err = pbt_rl("train", "--env", "toy/shaped", "--actors", "3", "--devices", "cpu", "--show")
    assert (code, err) == (0, "")
    config, end = json.JSONDecoder().raw_decode(out)
    assert config["env"] == "toy/shaped"
    assert config["actors"] == 3
    assert "learner 0 on cpu: members 0, 1, 2, 3; 3 actors x 2 units" in out[end:]
    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "no environment": ([], "--env is missing"),
    "no family": (["--env", "CartPole-v1"], "family/name"),
    "unknown family": (["--env", "gyn/CartPole-v1"], "Did you mean gym/CartPole-v1"),
    "unknown gym": (["--env", "gym/CartPoel-v1"], "gym/CartPole-v1"),
    "unknown game": (["--env", "atari/pongg"], "atari/pong"),
    "unknown toy": (["--env", "toy/identiti"], "toy/identity"),
    "no policies": (["--num-policies", "0"], "--num-policies 0 cannot be used: a population has 1 or more"),
    "a nested value": (
        ["--pbt.replace-fraction", "0.7"],
        "--pbt.replace-fraction 0.7 cannot be used: give 0 to 0.5",
    ),
    "a hyper out of bounds": (["--hypers.learning-rate", "3"], "--hypers.learning-rate 3 is out of bounds"),
    "no such algorithm": (["--algo", "dqn"], "--algo dqn cannot be used: use one of appo, a3c"),
    "an algorithm that is not there": (
        ["--algo", "nowhere:X"],
        "--algo: algorithm 'nowhere:X' cannot be loaded: No module named 'nowhere'",
    ),
    "a3c has no divergence": (
        ["--algo", "a3c", "--learner.lr-schedule", "kl-adaptive"],
        "--learner.lr-schedule kl-adaptive cannot be used: a3c measures no divergence",
    ),
    "device not there": (["--devices", "cuda:99"], "'cuda:99' is not on this machine"),
    "no device": (["--devices", "tpu"], "'tpu' is not a device"),
    "too many devices": (["--devices", "cpu,cpu", "--num-policies", "1"], "2 devices for 1 policies"),
    "serial on two": (["--devices", "cpu,cpu", "--mode", "serial"], "--mode serial"),
    "too few actors": (["--devices", "cpu,cpu", "--actors", "1"], "--actors 1 is too few"),
    "bad name": (["--name", "../x"], "--name '../x' cannot be used"),
    "bad tune": (["--pbt.tune", "learning_rat"], "did you mean learning_rate?"),
    "bad encoder": (["--model.encoder", "resnet"], "--model.encoder resnet cannot be used"),
    "no such module": (["--model.encoder", "nowhere:Net"], "'nowhere:Net' cannot be loaded"),
    "encoder that does not fit": (["--model.encoder", "nature"], "needs an image"),
    "out is a file": (["--out", "a_file"], "--out a_file cannot be written: Not a directory"),
    "out cannot be made": (["--out", "/proc/runs"], "--out /proc/runs cannot be written"),
    "name taken": (["--name", "taken"], "choose another name or add --overwrite"),
    "overwrite what is no run": (["--name", "taken", "--overwrite"], "is not a run"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_clear_line(pbt_rl, tmp_path, mistake):
    arguments, answer = MISTAKES[mistake]
    (tmp_path / "a_file").touch()
    taken = tmp_path / "runs" / "taken"
    taken.mkdir(parents=True)
    (taken / "diary.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    if "environment" not in mistake and "--env" not in arguments:
        arguments = ["--env", "toy/identity", *arguments]
    code, out, err = pbt_rl("train", *arguments)
    assert code == EXIT_USER_ERROR
    assert out == ""
    assert answer in err
    assert err.startswith("pbt-rl: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--num-policies", "four"], "four"),
        (["--nun-policies", "4"], "--num-policies"),
    ],
)
def test_what_is_no_option_is_explained(pbt_rl, tmp_path, arguments, answer):
    code, out, err = pbt_rl("train", "--env", "toy/identity", *arguments)
    assert (code, out) == (EXIT_USER_ERROR, "")
    assert answer in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_commands(pbt_rl):
    assert pbt_rl("--help")[0] == 0
    assert pbt_rl()[0] == EXIT_USER_ERROR
    code, _, err = pbt_rl("trian")
    assert code == EXIT_USER_ERROR
    assert "'trian' is no command: use train, eval, replay, report, envs" in err


def test_envs_lists_what_is_here_without_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['pbt-rl', 'envs']\n"
        "from pbt_rl.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code)\n"
    )
    out = python(code, tmp_path)
    assert "toy/  toys with known answers" in out
    assert "CartPole-v1" in out
    assert out.endswith("False 0\n")


def test_the_installed_command_is_main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["pbt-rl"] == "pbt_rl.cli:main"


def test_overwrite_replaces_a_run(pbt_rl, tmp_path):
    arguments = ("--env", "toy/identity", "--mode", "serial", "--name", "x", "--num-policies", "1")
    arguments += ("--train-for-frames", "100", "--actors", "1")
    assert pbt_rl("train", *arguments)[0] == 0
    (tmp_path / "runs" / "x" / "old").touch()
    assert pbt_rl("train", *arguments, "--overwrite")[0] == 0
    assert not (tmp_path / "runs" / "x" / "old").exists()


def test_packages_of_the_user_do_no_harm(tmp_path):
    """A working directory with `envs`, `algos` and `scripts` of its own, far from ours."""
    for name in ("envs", "algos", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise ImportError('the packages of the user were imported')\n"
        )
    run = start(
        tmp_path, "train", "--env=toy/identity", "--num-policies=2", "--train-for-frames=2000", "--name=x"
    )
    assert run.wait() == 0, run.err
    assert run.err == ""
    assert run.summary["ended"] == "frames"


@pytest.mark.parametrize("arguments", ["train --help", "envs"])
def test_a_reader_that_stops_reading_is_no_traceback(arguments, tmp_path):
    command = f"{sys.executable} -m pbt_rl.cli {arguments}"
    piped = f"set -o pipefail; {{ sleep 0.2; {command}; }} | true"
    done = subprocess.run(
        ["bash", "-c", piped], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
