"""The examples of docs/reference/python.md and docs/reference/tune-run.md run as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pbt_rl.errors import ConfigError
from pbt_rl.report.audit import audit
from pbt_rl.report.listing import list_runs
from tests.helpers.runs import python

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = "".join(
    (DOCS / name).read_text(encoding="utf-8") for name in ("reference/python.md", "reference/tune-run.md")
)
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
def test_train_and_play(tmp_path):
    text = python(BLOCKS["train_cartpole"].replace("60_000", "8_000"), tmp_path)
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


def test_tune_by_rules(tmp_path):
    (tmp_path / "tune_fit.py").write_text(BLOCKS["tune_fit"])
    told = python(BLOCKS["tune_rules"], tmp_path)
    objective, best = re.fullmatch(r"<Result of tune.run: .* objective (\S+), (\{.*\})>\n", told).groups()
    assert "'rate'" in best
    assert float(objective) > -0.1


def test_the_folder_of_a_tuned_run(tmp_path):
    """The second block, a fragment, behind the first one."""
    space = 'space = {"rate": (1e-4, 1e-1), "gradient": ["noisy", "exact"]}'
    fragment = re.search(r"^## A folder\n+```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)[1]
    lines = [space, *fragment.splitlines(), 'print(tune.audit("runs/fit", space))']
    begin = BLOCKS["tune_fit"].partition('if __name__ == "__main__":')[0]
    assert python("\n".join([begin, *lines]), tmp_path) == "[]\n"
    [row] = list_runs(tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"fit .*tune\.audit"):
        audit(tmp_path / "runs" / "fit")
    assert (row.name, row.env, row.members, row.state) == ("fit", "pbt_rl.tune.run", 8, "ended")


NOTEBOOK = json.loads((DOCS / "first-population.ipynb").read_text(encoding="utf-8"))
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_holds_what_its_cells_gave():
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert all(cell["execution_count"] and cell["outputs"] for cell in CELLS)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2, "the curves and the forest"
    assert len(json.dumps(NOTEBOOK)) < 200_000


@pytest.mark.long
def test_the_notebook_runs(tmp_path):
    text = "\n".join("".join(cell["source"]) for cell in CELLS)
    for name, shorter in {"train_for_": 12_000, '"start_': 3_000, '"period_': 2_000}.items():
        text, found = re.subn(rf'({name}frames"?\W+)\d+_000', rf"\g<1>{shorter}", text)
        assert found == 1, f"{name}frames is no longer in the notebook"
    text = f"import matplotlib\nmatplotlib.use('agg')\n{text}"
    assert float(python(text, tmp_path).splitlines()[-1]) > 5
    assert (tmp_path / "runs" / "first-population" / "report" / "forest.png").is_file()
