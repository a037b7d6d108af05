"""What a run says at its end."""

import pytest

import pbt_rl


def said(out, capsys, **options):
    """Train two members for a moment; return the lines of its end."""
    few = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
    options = {"train_for_frames": 600, "pbt.start_frames": 100, "pbt.period_frames": 100} | options
    pbt_rl.train(env="toy/identity", out=out, name="x", **few, **options)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("best"))
    return lines[at:]


def test_the_verdict_names_the_best_and_is_followed_by_three_commands(tmp_path, capsys):
    verdict, *commands = said(tmp_path, capsys)
    assert "comparison" in verdict
    assert [line.split()[1] for line in commands] == ["report", "eval", "resume"]
    assert commands[-1].split()[3:5] == ["--train-for-frames", "1200"], "as it stands it would do nothing"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"pbt.period_frames": 5000}, "--train-for-frames 10000"),
        ({"pbt.min_episodes": 10**6}, "--envs-per-unit"),
    ],
)
def test_a_run_that_compared_nobody_says_so_in_its_last_line(tmp_path, capsys, options, remedy):
    *_, last = said(tmp_path, capsys, **options)
    assert last.startswith("members were never compared: ")
    assert remedy in last
