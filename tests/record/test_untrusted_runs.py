"""Files of runs that anybody may have written: nothing that they name is imported, and damage is one clear error."""

import contextlib
import io
import json
import os
import random
import shutil
import sys

import pytest

from pbt_rl.config import Config, LearnerConfig, ModelConfig
from pbt_rl.controllers.decide import audit_decisions
from pbt_rl.controllers.exploit_published import TTest
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig, ScheduleConfig
from pbt_rl.controllers.settings import with_settings
from pbt_rl.envs.lookup import EnvOptions, keywords, probe
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.learner.build import build_pack
from pbt_rl.plan import PackPlan
from pbt_rl.play.evaluate import evaluate
from pbt_rl.play.policy import load_policy
from pbt_rl.population.matchups.against import evaluate_against, find_opponent
from pbt_rl.record.folder import RunFolder, config_from_json, to_json
from pbt_rl.record.history import read_run
from pbt_rl.record.journal import read_journal
from pbt_rl.record.saved import Source
from pbt_rl.report.audit import audit
from pbt_rl.report.exports import files
from pbt_rl.report.page import page
from pbt_rl.report.pictures import PICTURES
from pbt_rl.run.resolved import build_controller, value_table
from tests.helpers.journals import read_events, simulated, write
from tests.helpers.mangle import mangled, replaced_by_no_file
from tests.helpers.saved import save

ENV = "toy/identity?length=5"
PBT = PbtConfig(period_frames=10_000, start_frames=10_000, min_episodes=1, mutation_rate=0.5)
OPTIONS = {"pbt": PBT, "model": ModelConfig("mlp", 8, 1)}
MEMBERS = 4
MANGLES = 300


def fresh_pack():
    config = Config(ENV, num_policies=MEMBERS, **OPTIONS)
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    plan = PackPlan("cpu", (1,), 1, 1, 1, 1, 1, 1)
    return build_pack(config, probe(ENV, config.env_options), plan, [values], 5)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with everything that the commands read: config, journal, a checkpoint of member 1."""
    config = Config(ENV, num_policies=MEMBERS, **OPTIONS)
    controller = build_controller(config, value_table(config, {}), 0)
    events = simulated(controller, MEMBERS, MEMBERS, OPTIONS, chunk_frames=10_000, limit_frames=40_000)
    events[0]["config"]["env"] = ENV
    folder = write(tmp_path_factory.mktemp("strangers") / "run", events)
    save(folder, fresh_pack(), {1: 0}, best=1)
    return folder


@pytest.fixture
def run(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "run")


def configure(run, name, value):
    """Change an option, given by its dotted name, in the config of a run."""
    config = json.loads((run / "config.json").read_text())
    *path, last = name.split(".")
    holder = config
    for part in path:
        holder = holder[part]
    holder[last] = value
    (run / "config.json").write_text(json.dumps(config))
    lines = (run / "journal.jsonl").read_text().splitlines()  # an audit takes the config from there
    start = json.loads(lines[0]) | {"config": config}
    (run / "journal.jsonl").write_text("\n".join([json.dumps(start), *lines[1:]]) + "\n")


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that tells when it is imported."""
    (tmp_path / "evil.py").write_text(
        "import pathlib, gymnasium\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "def make(length=5):\n"
        "    import pbt_rl.envs.toy\n"
        "    return pbt_rl.envs.toy.Identity(length=length)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return tmp_path / "imported"


def play(run):
    evaluate(Source(run), 1, None, 0, greedy=False)


def meet(run):
    evaluate_against(Source(run), "random", 2, 0, greedy=False)


PLAYED = {
    "env": ("evil:make", "gym/evil:Make-v0", "gym/evil:x/Make-v0", "dmlab/../../evil", "dmlab//evil"),
    "env_option": (["a=evil:make"], ['a={"b":["evil"]}']),
    "algo": ("evil:ALGO",),
    "model.encoder": ("evil:make",),
    "model.core": ("evil:make",),
    "model.policy_head": ("evil:make",),
    "model.value_head": ("evil:make",),
    "dmlab.level_cache": ("/home",),
    "dmlab.level_cache_gb": (1e-6,),
}
DECIDED = dict.fromkeys(("controller", "pbt.exploit", "pbt.explore"), ("evil:Rule",))
DECIDED |= {"pbt.custom_explore": ("evil:make",)}


@pytest.mark.parametrize(
    ("option", "value", "follow"),
    [
        *[(o, v, c) for o, values in PLAYED.items() for v in values for c in (play, meet, load_policy)],
        *[(o, v, audit) for o, values in DECIDED.items() for v in values],
    ],
)
def test_nothing_that_a_config_names_is_imported(run, evil, option, value, follow):
    configure(run, option, value)
    if option == "algo":
        configure(run, "learner.lr_schedule", "kl-adaptive")  # an option that asks the algorithm
    dashed = option.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"config.json .*--{dashed} .*--trust .*trust=True"):
        follow(run)
    assert not evil.exists()


def test_a_run_that_was_made_here_is_its_users_own(run, evil, capsys):
    configure(run, "env", "evil:make")
    configure(run, "env_option", ["length=5", f"name={'x' * 300}"])
    RunFolder(run).write_origin(run)
    with contextlib.suppress(EnvSetupError):  # the environment has no such option
        evaluate(Source(run), 1, None, 0, greedy=False)
    assert evil.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "--env evil:make" in line
    assert len(line) < 160, "it fits a line or two of a terminal"
    assert RunFolder(run.rename(run.with_name("moved"))).is_own is False
    copied = shutil.copytree(run.with_name("moved"), run)
    assert not RunFolder(copied).is_own


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_what_others_may_change_is_nobodys_own(run, mode):
    RunFolder(run).write_origin(run)
    assert RunFolder(run).is_own
    run.chmod(mode)
    assert not RunFolder(run).is_own
    run.chmod(0o755)
    (run / "journal.jsonl").rename(run / "other")
    (run / "journal.jsonl").symlink_to(run / "other")
    assert not RunFolder(run).is_own


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("name", ["config.json", "journal.jsonl", ".origin", "checkpoints"])
def test_a_file_of_somebody_else_makes_a_run_his(run, name):
    RunFolder(run).write_origin(run)
    os.chown(run / name, 12345, -1)
    assert not RunFolder(run).is_own


def test_an_opponents_run_is_no_more_trusted(run, evil):
    configure(run, "env", "evil:make")
    with pytest.raises(ConfigError, match=r"config.json .*--env evil:make"):
        find_opponent(str(run), probe(ENV, EnvOptions()), 0, greedy=False)
    assert not evil.exists()


def test_other_commands_do_not_ask(run, evil, capsys):
    for option, value in (("env", "evil:make"), ("algo", "evil:ALGO"), ("model.encoder", "evil:make")):
        configure(run, option, value)
    assert audit(run) == 0
    assert draw(run)
    follow_schedule(run)
    assert not evil.exists()


def test_what_the_user_trusts_is_imported(run, evil, capsys):
    configure(run, "env", "evil:make")
    configure(run, "env_option", ["length=5"])
    evaluate(Source(run), 1, None, 0, greedy=False, trust=True)
    assert "evil:make" in capsys.readouterr().out
    assert evil.exists()
    assert load_policy(run, trust=True).spec.env_id == "evil:make"


def test_a_config_imports_nothing_when_it_is_made(evil):
    config = Config("evil:make", algo="evil:ALGO", learner=LearnerConfig(lr_schedule="kl-adaptive"))
    assert config_from_json(json.loads(json.dumps(to_json(config)))) == config
    assert not evil.exists()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(run, broken):
    for array, said in (("param", "net.body"), ("return_square", "stats.return_square")):
        pack = fresh_pack()
        pack.state[array][:] = broken
        save(run, pack, {1: 0}, best=1)
        for follow in (play, load_policy):
            with pytest.raises(ConfigError, match=rf"NaN .*{said}"):
                follow(run)


@pytest.mark.parametrize(
    ("option", "value"),
    [("hidden", 10**9), ("layers", 10**9), ("core_size", 10**9), ("hidden", 9), ("layers", 2)],
)
def test_a_network_is_built_only_if_it_is_the_saved_one(run, option, value):
    configure(run, f"model.{option}", value)
    configure(run, "model.core", "gru" if option == "core_size" else "none")
    with pytest.raises(ConfigError, match=r"network .*config\.json"):
        load_policy(run)


def draw(run):
    history = read_run(run)
    return page(history, [(picture, "not drawn") for picture in PICTURES]).encode(), files(history)


def follow_schedule(run):
    config = Config(ENV, controller="schedule", schedule=ScheduleConfig(run=str(run)))
    return build_controller(config, value_table(config, {}), 0).initial(2)


READERS = {
    "config.json": (load_policy, audit),
    "checkpoints/at_1000/manifest.json": (load_policy,),
    "checkpoints/at_1000/state.json": (load_policy,),
    "checkpoints/at_1000/policy_01.safetensors": (load_policy,),
    "journal.jsonl": (audit, draw, follow_schedule),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_clear_error_or_read(run, name):
    """300 ways for each file. Anything but ConfigError fails this test with the number that makes it again."""
    whole, refused = (run / name).read_bytes(), 0
    for number in range(MANGLES):
        rng = random.Random(number)
        (run / name).write_bytes(mangled(whole, rng))
        refused += sum(not works(read, run, f"{name} mangled by {number}") for read in READERS[name])
    assert refused > MANGLES / 4, "the mangles were meant to do harm"


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_one_clear_error(run, recorded, name):
    for number in range(20):
        replaced_by_no_file(run / name, random.Random(number))
        for read in READERS[name]:
            works(read, run, f"{name} replaced by {number}")
        path = run / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copy(recorded / name, path)


def works(read, run, what):
    """Whether a command reads the run; fails if it ends with anything but one clear error."""
    said = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read(run)
    except (ConfigError, EnvSetupError) as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(f"{what} raises {type(error).__name__}") from error
    assert len(said) < 1500, what
    assert "Traceback" not in said, what
    return not said


DAMAGES = [
    ("num_policies", 100_000, "100000 members, but .* for 4", audit),
    ("num_policies", 10**9, "--num-policies 1000000000 ", audit),
    ("num_policies", 10**30, "num_policies in config.json .* whole", audit),
    ("seed", None, "seed in config.json ", audit),
    ("pbt", [], "pbt in config.json .*object", audit),
    ("env", "toy/\x1b[2J", "env in config.json .* text", load_policy),
    ("out", "a\0b", "out in config.json .* path", load_policy),
    ("hypers.gamma", "0.99", "hypers.gamma in config.json .* finite", audit),
    ("env", "toy/identity?size=99999999999", "size=99999999999", load_policy),
]


@pytest.mark.parametrize(("option", "value", "said", "read"), DAMAGES)
def test_an_error_names_the_option_and_what_it_should_be(run, option, value, said, read):
    configure(run, option, value)
    with pytest.raises((ConfigError, EnvSetupError), match=said):
        read(run)


def edit(run, kind, change):
    """Change the first event of a kind in a run's journal."""
    lines = (run / "journal.jsonl").read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if f'"event": "{kind}"' in line)
    event = json.loads(lines[number])
    change(event)
    lines[number] = json.dumps(event)
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n")


def copy_from(event, donor):
    values = next(d["values"] for d in event["decisions"] if "values" in d)
    event["decisions"][0] |= {"decision": "replace", "donor": donor, "copy": "both", "values": values}


EVENTS = {
    "text for frames": ("round", lambda e: e.update(frames="many"), r"at `\$\.frames`"),
    "nobody": ("round", lambda e: e["decisions"][0].update(member=77), "member 77"),
    "twice": ("round", lambda e: e["decisions"].append(e["decisions"][0]), "two decisions"),
    "no such decision": (
        "round",
        lambda e: e["decisions"][0].update(decision="eat"),
        r"decisions\[0\]\.decision`",
    ),
    "other names": ("initial", lambda e: e["values"][1].pop("gamma"), "event `initial`"),
    "unknown donor": ("round", lambda e: copy_from(e, 9), "member 9"),
}


@pytest.mark.parametrize("damage", EVENTS)
def test_an_error_names_the_line_of_the_journal(run, damage):
    kind, change, said = EVENTS[damage]
    edit(run, kind, change)
    for read in (audit, draw, follow_schedule):
        with pytest.raises(ConfigError, match=said):
            read(run)


UNDECIDABLE = (ZeroDivisionError("by zero"), OverflowError("too large"), ValueError("math domain"))


@pytest.mark.parametrize("error", UNDECIDABLE)
def test_numbers_from_which_nothing_can_be_decided_are_one_clear_error(run, error):
    records = read_journal(run / "journal.jsonl")

    class Dividing:
        def initial(self, number):
            return next(e["values"] for e in records if e["event"] == "initial")

        def observe(self, report):
            raise error

    with pytest.raises(ConfigError, match=f"line [0-9]+ .*: {error}"):
        audit_decisions(read_events(records), Dividing())


def test_options_of_a_rule_that_are_nested_without_end_are_texts():
    assert keywords(["x=" + "[" * 100_000]) == {"x": "[" * 100_000}
    for name in ("x", "level"):
        with pytest.raises(ConfigError, match=f"--pbt.exploit-option {name}="):
            with_settings(TTest(0.05), [f"{name}=" + "[" * 100_000], "pbt.exploit-option")
