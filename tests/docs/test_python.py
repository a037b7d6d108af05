"""The examples of docs/python.md and docs/tune.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.runs import python

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("python.md", "tune.md"))
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
def test_train_and_play(tmp_path):
    text = python(BLOCKS["train_cartpole"].replace("60_000", "3_000"), tmp_path)
    assert text.splitlines()[-1].startswith("frames ")
    assert python(BLOCKS["play"], tmp_path) == ""


@pytest.mark.long
def test_callbacks(tmp_path):
    quick = 'env="toy/identity", mode="serial", figures=False, '
    text = python(BLOCKS["watched"].replace('env="toy/identity", ', quick), tmp_path)
    assert re.search(r"checkpoints/at_\d+ \d+", text)


def test_tune(tmp_path):
    best, objective = re.fullmatch(r"(\{.*\}) (\S+)\n", python(BLOCKS["tune_fit"], tmp_path)).groups()
    assert "'exact'" in best
    assert float(objective) > -0.1
