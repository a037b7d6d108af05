"""The benchmark of simulators: what is in its file is not measured again, and what is counted is counted right."""

import importlib
import json
import sys

import pytest
import torch

from tests.helpers.runs import ROOT


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("resident_bench")


def test_a_case_that_is_done_is_not_measured_again_and_a_missing_peer_is_left_out(
    bench, monkeypatch, tmp_path, capsys
):
    asked = []

    def first(rounds):
        """The first."""
        asked.append(rounds)
        return "1.00"

    def missing(_rounds):
        raise ModuleNotFoundError("No module named 'rsl_rl'")

    for name, value in bench.CHILD_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench, "CASES", {"first": first, "missing": missing})
    file, threads = tmp_path / "x" / "found.json", torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["resident_bench.py", "--rounds=3", f"--file={file}"])
    for _ in range(2):
        bench.main()
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    assert asked == [3]
    assert json.loads(file.read_text())["first"]["found"] == "1.00"
    assert said.count("missing: left out, No module named 'rsl_rl'") == 2
    assert said.count("| The first | 1.00 | 3 |") == 2


def test_calls_that_a_device_carries_out_are_counted_and_waits_apart(bench):
    x = torch.arange(6.0)
    with bench.Calls() as calls:
        y = x.view(2, 3).t()
        z = torch.where(y > 2, y, 0.0)
        torch.empty(3)
        z.sum().item()
    assert (calls.launches, calls.waits) == (3, 1), "a comparison, a selection and a sum"
