"""`--pbt.exploit-option NAME=VALUE` and the registries that name the rules."""

import subprocess
import sys
from dataclasses import fields, replace
from importlib.metadata import EntryPoint

import pytest

from pbt_rl.config import Hypers
from pbt_rl.controllers.exploit import ExploitRule, Gap, Truncation
from pbt_rl.controllers.explore import ExploreRule
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.lookup import build_exploit, build_explore, least_members
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.errors import ConfigError
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES
from tests.helpers.runs import HANG_SECONDS

TABLE = hyper_table(Hypers())


def exploit(rule, *entries):
    return build_exploit(PbtConfig(exploit=rule, exploit_option=entries))


def explore(rule, *entries):
    return build_explore(PbtConfig(explore=rule, explore_option=entries), TABLE)


def test_settings_replace_fields_of_the_rule():
    from pbt_rl.controllers.exploit_published import SigmaGap

    assert exploit("sigma-gap", "sigmas=0.4", "fraction=0.2") == SigmaGap(0.2, 0.4, 0.05)
    assert exploit("sigma-gap") == SigmaGap()
    assert exploit("truncation", "gap.relative=0.5") == Truncation(
        0.3, Gap(0.5, 1e-6, 2.5), others_mutate=False
    )
    assert exploit("truncation", "others_mutate=true").others_mutate
    assert exploit("t-test", "returns=20").returns == 20


def test_settings_reach_the_rules_of_a_pipeline():
    backtrack, quantile = exploit("backtrack", "rules.0.quantile=0.7", "rules.1.pool=0.5").rules
    assert (backtrack.quantile, backtrack.pool) == (0.7, 0.2)
    assert (quantile.quantile, quantile.pool) == (0.8, 0.5)
    assert explore("resample-all", "rules.1.volatility=0.3").rules[1].volatility == 0.3
    assert explore("resample", "otherwise.factors=[3,0.5]").otherwise.factors == (3.0, 0.5)
    assert explore("pb2", "window=50").window == 50
    assert explore("factors", "categories=uniform").categories == "uniform"


@pytest.mark.parametrize(
    ("build", "rule", "entry", "remedy"),
    [
        (exploit, "sigma-gap", "sigmas", "NAME=VALUE"),
        (exploit, "sigma-gap", "sigmas=NaN", "finite"),
        (exploit, "backtrack", "rules.2.pool=0.5", "NAME=VALUE"),
        (explore, "factors", "factors=x", "several"),
        (explore, "pb2", "tuned=3", "window, candidates"),
    ],
)
def test_what_is_no_setting_is_refused(build, rule, entry, remedy):
    with pytest.raises(ConfigError, match=rf"--pbt.explo[a-z]+-option {entry}.*{remedy}"):
        build(rule, entry)


class Recording:
    """Options that note which of them are read."""

    def __init__(self, pbt):
        self.pbt = pbt
        self.read = set()

    def __getattr__(self, name):
        self.read.add(f"pbt.{name}")
        return getattr(self.pbt, name)


@pytest.mark.parametrize(
    ("entry", "arguments"),
    [
        *((rule, ()) for rule in (*READY_RULES.values(), *EXPLOIT_RULES.values())),
        *((rule, (TABLE,)) for rule in EXPLORE_RULES.values()),
    ],
)
def test_an_entry_names_exactly_the_options_that_it_reads(entry, arguments):
    options = Recording(PbtConfig())
    entry.build(options, *arguments)
    assert options.read - {"pbt.exploit"} == set(entry.options)
    assert set(entry.options) <= {f"pbt.{f.name}" for f in fields(PbtConfig)}


def test_entries_of_controllers():
    assert {name for name, entry in CONTROLLERS.items() if entry.searches} == {
        "hypertrick",
        "successive-halving",
        "hyperband",
        "asha",
        "random",
    }
    assert [name for name, entry in CONTROLLERS.items() if entry.follows] == ["schedule"]
    assert (least_members("backtrack"), least_members("impala"), least_members("my.rules:Own")) == (5, 1, 1)


def test_a_rule_need_not_be_tuned_by_options_that_it_does_not_read():
    assert build_exploit(replace(PbtConfig(exploit="impala"), replace_gap=0.9)).gap == 0.05


def test_a_rule_of_another_package(monkeypatch):
    for name, path in (("halves", "pbt_rl.controllers.exploit:TRUNCATION"), ("gone", "math:NOPE")):
        monkeypatch.setitem(EXPLOIT_RULES._others, name, EntryPoint(name, path, EXPLOIT_RULES.group))
    rule = build_exploit(PbtConfig(exploit="halves", exploit_option=("fraction=0.5",)))
    assert isinstance(rule.made, Truncation)
    assert rule.made.fraction == 0.5
    with pytest.raises(ConfigError, match=r"--pbt\.exploit gone .*gone = math:NOPE"):
        build_exploit(PbtConfig(exploit="gone"))


class Silent:
    """A rule of another package that decides nothing, and breaks values."""

    def select(self, members, rng, deciding=None):
        return []

    def initial(self, values, rng):
        return values

    def mutate(self, values, rng):
        return {name: float("nan") for name in values}


SILENT_EXPLOIT = ExploitRule(lambda _: Silent(), help="decides nothing")
SILENT_EXPLORE = ExploreRule(lambda _pbt, _tuned: Silent(), help="breaks values")


def test_a_faulty_rule_of_another_package_is_found_before_training(monkeypatch):
    for table, path in ((EXPLOIT_RULES, "SILENT_EXPLOIT"), (EXPLORE_RULES, "SILENT_EXPLORE")):
        monkeypatch.setitem(table._others, "silent", EntryPoint("silent", f"{__name__}:{path}", table.group))
    with pytest.raises(ConfigError, match=r"--pbt\.exploit silent: select "):
        build_exploit(PbtConfig(exploit="silent"))
    with pytest.raises(ConfigError, match=r"--pbt\.explore silent: mutate.* NaN for "):
        build_explore(PbtConfig(explore="silent"), TABLE)


def test_the_registries_load_no_torch_and_start_nothing():
    code = (
        "import sys\n"
        "from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES\n"
        "for rules in (CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES):\n"
        "    assert list(rules.values())\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'multiprocessing'} & sys.modules.keys()\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
