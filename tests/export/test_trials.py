"""`pbt-rl export RUN --format optuna`: Optuna reads back what the run has tried."""

from __future__ import annotations

import pytest

import pbt_rl
from pbt_rl.errors import ConfigError
from pbt_rl.export.trials import export_trials
from pbt_rl.report.read import read_run

optuna = pytest.importorskip("optuna", reason='needs pip install "pbt-rl[optuna]"')


def study_of(path, name):
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.load_study(storage=JournalStorage(JournalFileBackend(str(path))), study_name=name)


def test_a_runs_trials_are_read_back(tmp_path):
    result = pbt_rl.train(
        env="toy/identity",
        num_policies=3,
        mode="serial",
        devices="cpu",
        actors=1,
        figures=False,
        train_for_frames=4000,
        out=tmp_path,
        name="x",
        pbt={"start_frames": 500, "period_frames": 500, "min_episodes": 1},
    )
    history = read_run(result.folder)
    for _ in range(2):  # the second time the file is written anew
        path = export_trials(result.folder)
    study = study_of(path, "x")
    assert path == result.folder / "export" / "optuna.journal"
    assert len(study.trials) == len(history.lineage.nodes) > 3
    for trial in study.trials:
        node = history.lineage[trial.user_attrs["member"], trial.user_attrs["generation"]]
        assert trial.value == history.objective(node)
        assert trial.params == {name: pytest.approx(node.values[name]) for name in history.varied}
    measured = [trial for trial in study.trials if trial.value is not None]
    assert study.best_value == max(trial.value for trial in measured)
    assert any(trial.intermediate_values for trial in measured)
    assert study.direction.name == "MAXIMIZE"


def test_a_folder_that_is_no_run_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        export_trials(tmp_path)
