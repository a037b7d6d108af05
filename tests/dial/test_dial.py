"""`--hours`: options that follow, and those that do not."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pbt_rl.audit.recorded import audit
from pbt_rl.cli.train import parse_train
from pbt_rl.dial import dial
from pbt_rl.dial.measure import Episodes, Trial, tried_run
from pbt_rl.dial.trial import Speed
from pbt_rl.errors import ConfigError
from pbt_rl.files.config import written
from pbt_rl.journals.events import Round
from pbt_rl.journals.reading import journal_events
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.run.shown import describe_comparisons
from pbt_rl.run.train import resolve
from pbt_rl.run.views import describe_plan


@pytest.fixture
def trials(monkeypatch):
    """Trials of 12,000 steps/s whose episodes have 20 to 30 steps; the configs that they were made with."""
    made = []

    def run(config, _seconds):
        made.append(config)
        members = [{"frames": 1000, "episodes": 40}] * config.members
        return Trial(config, {"members": members}, 12_000.0)

    monkeypatch.setattr(dial, "tried_run", run)
    monkeypatch.setattr(dial, "played", lambda *_: Episodes((20, 30, 25), 100, 500))
    return made


def planned(tmp_path, words=""):
    given = f"--env gym/CartPole-v1 --hours 0.04 --out {tmp_path} {words}"
    return parse_train(given.split())[0]


def test_the_budget_is_all_that_is_given(trials, tmp_path):
    config = planned(tmp_path)
    assert (config.pbt.ready, config.pbt.period_seconds, config.pbt.start_seconds) == ("timed", 3.6, 14.4)
    assert (config.num_policies, config.train_for_seconds) == (4, 144.0)
    resolved = resolve(config)
    (pack,) = resolved.plan.packs
    assert pack.environments_of_member <= 8
    assert pack.batch_rows * config.learner.rollout >= 0.75 * 1024  # rollouts are longer instead
    text = "\n".join(describe_plan(resolved))
    assert (
        "--hours 0.04: 144 s of training; members are compared after 14.4 s, then every 3.6 s, about 37"
        in text
    )
    (trial,) = trials
    assert not trial.pbt.enabled


def test_the_plan_says_when_members_are_compared_and_nothing_of_it_for_one_policy(trials, tmp_path):
    several, one = (
        "\n".join([*describe_plan(run), *describe_comparisons(run.config)])
        for run in (resolve(planned(tmp_path, words)) for words in ("", "--num-policies 1"))
    )
    assert "members are compared after 14.4 s of training and every 3.6 s from there" in several
    assert "--hours 0.04: 144 s of training" in one
    assert "compared" not in one


def test_what_the_user_gives_stays(trials, tmp_path):
    words = "--num-policies 6 --pbt.min-episodes 3 --envs-per-unit 2 --train-for-frames 5000 --pbt.ready synchronous"
    config = planned(tmp_path, words)
    assert (config.num_policies, config.pbt.min_episodes, config.envs_per_unit) == (6, 3, 2)
    assert (config.train_for_frames, config.pbt.ready, config.learner.rollout) == (5000, "synchronous", 32)
    assert config.pbt.period_frames == 7200  # 12,000 / 6 frames/s for 3.6 s
    assert len(trials) == 1


def seen(seconds, frames, learned=None):
    stats = {} if learned is None else {"policy_loss": learned}
    return SimpleNamespace(
        seconds=seconds, frames=frames, members=[SimpleNamespace(learning_stats=stats)] * 2
    )


def test_the_speed_of_a_trial_is_that_after_the_first_update():
    speed = Speed(4.0)
    for second in range(1, 11):  # emulators are made, then nothing is learned from yet
        assert not speed.note(seen(10.0 + second, 0 if second < 4 else 100 * second))
    assert speed.rate == pytest.approx(100)  # if nothing else comes
    assert not speed.note(seen(21.0, 1000, 0.1))
    ended = [speed.note(seen(21.0 + s, 1000 + 800 * s, s // 2)) for s in range(1, 9)]
    assert ended.index(True) == 3  # the third batch after the first, and four seconds
    assert speed.rate == pytest.approx(800)


def test_few_environments_are_in_fewer_minibatches(monkeypatch, tmp_path):
    members = [{"frames": 1000, "episodes": 40}] * 4
    monkeypatch.setattr(dial, "tried_run", lambda c, _: Trial(c, {"members": members}, 400.0))
    monkeypatch.setattr(dial, "played", lambda *_: Episodes((20, 60, 25), 100, None))
    config = planned(tmp_path, "--learner.batch 1024 --learner.rollout 64")
    (pack,) = resolve(config).plan.packs
    assert config.learner.minibatches <= pack.batch_rows <= 2


def test_controls_take_their_share_of_the_environments(trials, tmp_path):
    plain, controlled = planned(tmp_path), planned(tmp_path, "--control 4")
    assert controlled.num_policies == plain.num_policies
    alone, both = (resolve(config).plan.environments for config in (plain, controlled))
    assert both <= alone * 1.1


def test_a_file_that_holds_what_was_chosen_is_not_measured_again(trials, tmp_path):
    config = planned(tmp_path)
    file = tmp_path / "half.json"
    file.write_text(written(to_json(config), "json"))
    again, _ = parse_train(["--config", str(file)])
    assert again == config
    assert len(trials) == 1


def test_a_run_that_is_there_keeps_what_was_chosen(trials, tmp_path):
    config = planned(tmp_path, "--name demo")
    folder = RunFolder(tmp_path / "demo")
    folder.path.mkdir()
    folder.config.write_text(json.dumps(to_json(config)))
    assert planned(tmp_path, "--name demo") == config
    assert len(trials) == 1
    with pytest.raises(ConfigError, match=r"--hours 1\.0 cannot be used: .* was begun with --hours 0\.04"):
        planned(tmp_path, "--name demo --hours 1")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--hours 0.001", "give at least --hours 0.0"),
        ("--hours 0", "above 0"),
        ("--hours 1 --controller asha", "give --train-for-seconds instead"),
        ("--hours 1 --pbt.no-enabled", "give --train-for-seconds instead"),
        (
            "--hours 1 --controller mf-pbt",
            "--hours 1 cannot be used, as it has members compared by time: .*mf-pbt",
        ),
        (
            "--hours 1 --pbt.evaluate-episodes 5",
            "as it has members compared by time: --pbt.evaluate-episodes 5",
        ),
        ("--hours 1 --train-for-seconds 1", "--train-for-seconds 1 cannot be used: .* give at least .* s"),
        ("--hours 1 --slots 2", "--slots 2 cannot be used: with --hours all members train at the same time"),
        pytest.param("--hours 1 --nodes ray", "leave out --nodes", marks=pytest.mark.extra("pbt_rl/nodes")),
    ],
)
def test_one_line_for_a_budget_that_is_of_no_use(trials, tmp_path, words, remedy):
    with pytest.raises(ConfigError, match=remedy) as raised:
        parse_train(f"--env gym/CartPole-v1 --out {tmp_path} {words}".split())
    assert "\n" not in str(raised.value)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_half_a_minute_holds_enough_comparisons(tmp_path):
    command = [sys.executable, "-m", "pbt_rl", "train", "--env", "gym/CartPole-v1", "--hours", "0.01"]
    subprocess.run([*command, "--name", "demo", "--out", tmp_path, "--figures", "no"], check=True)
    rounds = [e for e in journal_events(tmp_path / "demo") if isinstance(e, Round)]
    assert 20 <= len(rounds) <= 50
    assert audit(tmp_path / "demo") == 0


def test_a_trial_that_fails_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = parse_train(["--env", "toy/identity", "--devices", "cuda:7"])[0]
    with pytest.raises(
        ConfigError, match=r"the trial run failed: .*cuda:7' is not on this machine"
    ) as raised:
        tried_run(config, 1.0)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
