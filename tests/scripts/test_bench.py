"""The bench: every stage can be measured alone, and a round of unsteady cores is no figure."""

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator

import gymnasium
import psutil
import pytest
import torch

from pbt_rl.algos.update import Updater
from tests.helpers.fake_actor import ENVS, Bench
from tests.helpers.runs import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
bench = importlib.import_module("bench")
sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("stage", bench.STAGES)
def test_a_stage_is_measured_alone(stage):
    threads = torch.get_num_threads()
    microseconds = bench.measure_stage(stage, "gym/CartPole-v1", 2, 0.3)
    torch.set_num_threads(threads)
    assert 0.5 < microseconds < 5000


@pytest.mark.parametrize(("job", "steps"), [(bench.ONE_EPOCH, 1), (bench.DEFAULT, 16)])
def test_learning_is_measured_with_all_passes_over_a_batch(job, steps, monkeypatch):
    made = []
    steps_of = Updater.steps

    def counted(updater, group):
        for slots in steps_of(updater, group):
            made.append(slots)
            yield slots

    monkeypatch.setattr(Updater, "steps", counted)
    monkeypatch.setattr(bench, "timed_cpu", lambda step, *_, **__: step())
    threads = torch.get_num_threads()
    learned = bench.measure_stage("learning", "gym/CartPole-v1", 1, 0.1, job)
    torch.set_num_threads(threads)
    assert (learned, len(made)) == (1024, steps)


def test_inference_is_measured_with_a_vector_env_of_every_actor():
    with Bench(vector_envs=4, on_policy=False, spare=4) as stand:
        step = bench.inference_batch(stand.sampler, stand.shared, 2)
        assert [step() for _ in range(10)] == [2 * 2 * ENVS] * 10, (
            "two of four vector envs; also as rollouts end"
        )
        assert [vector_env.taken for vector_env in stand.sampler.vector_envs] == [2, 0, 2, 0]


@pytest.mark.parametrize(
    ("env", "raw"),
    [
        ("gym/CartPole-v1", "built-in"),
        ("gym/Pendulum-v1", "built-in"),
        ("gym/CartPole-v1", f"{__name__}:make_raw"),
        ("gym/CartPole-v1", f"{__name__}:make_vector"),
        ("atari/pong", "built-in"),
    ],
)
def test_a_vector_env_is_measured_beside_its_raw_engine(env, raw, capsys):
    figures = bench.beside_raw(env, raw, 2, 0.03, 3)
    assert capsys.readouterr().out.startswith(f"{env}, 2 rows: raw ")
    ratio = figures["cpu_over_raw"]
    assert 0.1 < ratio["least"] <= ratio["median"] <= ratio["most"] < 30
    for side in ("raw", "vector env"):
        assert figures[side]["frames_per_second"] > 10
        assert figures[side]["cpu_microseconds_per_step"] > 0.1


def make_raw():
    return gymnasium.make("CartPole-v1")


def make_vector():
    return gymnasium.make_vec("CartPole-v1", 2)


def test_an_environment_without_a_raw_engine_needs_one():
    with pytest.raises(SystemExit, match="--raw module:factory"):
        bench.beside_raw("tensors/pendulum", "built-in", 2, 0.03, 1)


def rounds(*drifts: float) -> Iterator[dict[str, float]]:
    return iter([{"drift": drift, "rate": number} for number, drift in enumerate(drifts)])


def test_a_round_in_which_the_cores_changed_their_speed_is_left_out_and_made_again(capsys):
    made = rounds(0.02, -0.4, 0.5, -0.2)
    found = bench.steady(lambda: next(made), 2)
    assert [one["rate"] for one in found] == [0, 3]
    printed = capsys.readouterr().out
    assert "-40%" in printed
    assert "+50%" in printed


def test_cores_that_are_faster_in_the_run_than_before_and_after_it_give_no_figure():
    with pytest.raises(RuntimeError, match=r"\+1% .*-36% "):
        bench.steady(lambda: {"drift": 0.01, "dearer than alone": -0.36}, 2)


def test_no_steady_round_is_an_error_and_ends():
    made = rounds(*[0.3] * 6, 0.0)
    with pytest.raises(RuntimeError, match="6 rounds"):
        bench.steady(lambda: next(made), 3)


def test_cores_that_other_processes_had_give_no_figure():
    made = iter([{"drift": 0.0, "others": 0.5}, {"drift": 0.0, "others": 0.01}])
    assert bench.steady(lambda: next(made), 1) == [{"drift": 0.0, "others": 0.01}]


def test_a_bench_that_is_ended_leaves_nothing_behind():
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "--env", "toy/identity"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
        process = psutil.Process(run.pid)
        while not (started := process.children(recursive=True)):
            assert run.poll() is None
            time.sleep(0.05)
        run.terminate()
    assert run.returncode == 143
    assert not [one for one in started if one.is_running()]
