"""Laws that every rule of selection keeps, and what each of them does."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pbt_rl.controllers.exploit import Gap, Selection, Truncation, mean_objective, score
from pbt_rl.controllers.exploit_published import (
    Backtrack,
    BinaryTournament,
    ExploitPipeline,
    Impala,
    QuantileTruncation,
    SigmaGap,
    TTest,
    incomplete_beta,
    welch_p,
)
from tests.helpers.populations import member, scored

RULES = {
    "top-middle-bottom": lambda: Truncation(0.3, Gap(0.1, 1e-6), others_mutate=True),
    "truncation": lambda: Truncation(0.5, Gap(0.0, 0.0), others_mutate=False),
    "no exploit": lambda: Truncation(0.0, Gap(0.0, 0.0), others_mutate=False),
    "t-test": TTest,
    "binary-tournament": BinaryTournament,
    "impala": Impala,
    "quantile": QuantileTruncation,
    "wide quantile": lambda: QuantileTruncation(2, quantile=0.0, pool=1.0),
    "backtrack": Backtrack,
    "small backtrack": lambda: Backtrack(2, quantile=0.5, pool=0.5),
    "sigma-gap": SigmaGap,
    "sigma-gap of halves": lambda: SigmaGap(0.5, 0.0, 0.0),
    "pipeline": lambda: ExploitPipeline((Backtrack(3, 0.5, 0.5), QuantileTruncation(3, 0.5, 0.5), Impala())),
}
number = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e-9, -1e-9, 1.7e308, -1.7e308]),
    st.floats(-100, 100),
)
populations = st.lists(
    st.builds(
        lambda objectives, best, broken: member(0, objectives, best=best, broken=broken),
        st.lists(number, min_size=1, max_size=4),
        st.one_of(st.none(), st.floats(-100, 100)),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=12,
).map(lambda members: [replace(m, member=3 * i) for i, m in enumerate(members)])


@settings(max_examples=60)
@pytest.mark.parametrize("name", RULES)
@given(populations, st.integers(0, 99), st.data())
def test_every_rule_gives_each_member_one_sound_fate(name, members, seed, data):
    selections = RULES[name]().select(members, Random(seed))
    assert [f.member for f in selections] == [m.member for m in members]
    by_id = {m.member: m for m in members}
    for f in selections:
        assert f.reason
        if f.donor is None:
            continue
        own, donor = score(by_id[f.member]), score(by_id[f.donor])
        assert f.donor != f.member, "a member copied itself"
        assert f.mutate
        assert math.isfinite(donor), "the donor is broken"
        assert math.isnan(own) or donor > own
        if name in ("truncation", "top-middle-bottom", "sigma-gap", "t-test") and math.isfinite(own):
            assert donor - own > 0
    assert selections == RULES[name]().select(members, Random(seed))
    asked = data.draw(st.sets(st.sampled_from([m.member for m in members])))
    some = RULES[name]().select(members, Random(seed), asked)
    assert [f.member for f in some] == [m.member for m in members if m.member in asked]


@pytest.mark.parametrize(("spread", "copied"), [(1.0, True), (60.0, False)])
def test_a_noisy_lead_is_not_copied(spread, copied):
    noise = [-1.5, -1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 0.0]
    members = [member(0, [spread * x for x in noise]), member(1, [10 + spread * x for x in noise])]
    low, high = TTest(level=0.05).select(members, Random(0))
    assert (low.donor == 1) == copied
    assert low.mutate == copied
    assert high.donor is None


def test_only_the_last_returns_are_tested():
    fallen = member(0, [100.0] * 90 + [1.0, 2.0] * 5)
    steady = member(1, [92.0, 93.0] * 50)
    assert TTest(returns=10).select([fallen, steady], Random(0))[0].donor == 1, (
        "its mean is higher, its last are not"
    )
    assert TTest(level=0.0).select([member(0, [1, 2]), member(1, [8, 9])], Random(0))[0].donor is None
    risen = member(2, [0.0] * 90 + [99.0, 98.0] * 5)
    assert TTest(returns=10).select([risen, member(3, [50.0, 51.0] * 50)], Random(0))[0].donor is None


def test_a_tournament_has_one_uniformly_drawn_opponent():
    members = scored([1.0, 2.0, 3.0, 4.0])
    opponents = Counter()
    for seed in range(600):
        selections = BinaryTournament().select(members, Random(seed))
        assert selections[3].donor is None
        opponents[selections[0].donor] += 1
    assert set(opponents) == {1, 2, 3}
    assert min(opponents.values()) > 150


@pytest.mark.parametrize(
    ("own", "other", "copied"),
    [
        (100, 104, False),
        (100, 106, True),
        (-100, -96, False),
        (-100, -94, True),
        (0, 1e-12, True),
        (-1, 1, True),
    ],
)
def test_impala_copies_what_is_five_percent_better_and_always_mutates(own, other, copied):
    first, second = Impala().select(scored([own, other]), Random(0))
    assert (first.donor == 1) == copied
    assert first.mutate
    assert second.mutate
    assert second.donor is None


def test_the_worst_fifth_forks_the_best_fifth():
    selections = QuantileTruncation().select(scored(range(10)), Random(1))
    assert [f.member for f in selections if f.donor is not None] == [0, 1]
    assert {f.donor for f in selections[:2]} <= {8, 9}
    assert not any(f.mutate for f in selections[2:])


def test_too_few_members_are_judged_later():
    selections = QuantileTruncation().select(scored(range(4)), Random(1))
    assert all(f.later and f.donor is None and not f.mutate for f in selections)
    assert not any(f.later for f in QuantileTruncation().select(scored(range(5)), Random(1)))
    assert all(f.later for f in QuantileTruncation(5, pool=0.1).select(scored(range(9)), Random(1))), (
        "empty pool"
    )


def selection_of(index, members, **options):
    return SigmaGap(**options).select(members, Random(0))[index]


def test_a_recent_peak_protects():
    scores = [10.0, 9.0, 8.0, 5.0, 4.0, 1.0]
    assert selection_of(5, scored(scores)).mutate
    assert selection_of(5, scored(scores)).donor in (0, 1)
    for best, protected in ((9.0, True), (8.9, False), (None, False)):
        members = [*scored(scores[:5]), member(5, (1.0,), best=best)]
        selection = selection_of(5, members)
        assert (selection.donor is None and not selection.mutate) == protected
    healthy = [*scored(scores[:5]), member(5, (1.0,), best=9.0, broken=True)]
    assert selection_of(5, healthy).donor is not None, "a peak does not protect weights that are broken"


def test_both_of_its_gaps_must_be_exceeded_and_else_it_mutates():
    scores = [10.0, 9.9, 9.8, 9.7, 9.6, 9.5]
    near = selection_of(5, scored(scores), relative=0.05, sigmas=0.0)
    assert near.mutate
    assert near.donor is None
    assert selection_of(5, scored(scores), relative=0.01, sigmas=0.0).donor in (0, 1)
    assert selection_of(5, scored(scores), relative=0.0, sigmas=5.0).donor is None
    negative = [-s for s in reversed(scores)]
    assert selection_of(5, scored(negative), relative=0.05, sigmas=0.0).donor is None
    assert selection_of(5, scored(negative), relative=0.01, sigmas=0.0).donor in (0, 1)


def test_what_measures_the_gap():
    members = scored([10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, -1e6, -1e7])
    assert selection_of(7, members, sigmas=1.0, relative=0.0).donor is not None
    members = scored([10.0, 1.0, math.nan, math.nan])
    assert not any(f.mutate or f.donor is not None for f in SigmaGap(0.5).select(members, Random(0)))


def test_after_a_copy_the_values_are_the_donors_or_its_own_evenly():
    members = scored([10.0, 9.0, 8.0, 5.0, 4.0, 1.0])
    copies = Counter(SigmaGap().select(members, Random(seed))[5].copy for seed in range(400))
    assert set(copies) == {"both", "weights"}
    assert min(copies.values()) > 150


def at(scores, generations=None, values=None):
    generations = generations or [0] * len(scores)
    return [
        member(i, (s,), generation=g, values={"x": 10.0 * i + g})
        for i, (s, g) in enumerate(zip(scores, generations, strict=True))
    ]


def test_a_member_that_falls_returns_to_an_elite_of_the_past():
    rule = Backtrack(min_population=3, quantile=0.6, pool=0.25)
    first = rule.select(at([1, 2, 3, 4]), Random(0))
    assert all(f.renew != (f.donor is not None) for f in first), (
        "all begin a new generation: each is an elite"
    )
    assert rule.remembers() == {(i, 0) for i in range(4)}
    selections = rule.select(at([1, 2, 3, 0.5], [1, 1, 1, 1]), Random(0))
    assert (selections[3].donor, selections[3].donor_generation) == (3, 0), "its own past is the best"
    assert selections[3].base == {"x": 30.0}
    assert rule.remembers() == {(i, 0) for i in range(4)}
    assert not any(f.renew for f in selections)


@pytest.mark.parametrize(("quantile", "forked"), [(0.2, 4), (0.4, 3), (0.6, 2), (0.8, 1), (0.99, 1)])
def test_only_those_beyond_the_quantile_return(quantile, forked):
    """Of four elites and itself, a member with k better elites is at place k + 1 of 5."""
    rule = Backtrack(min_population=3, quantile=quantile, pool=0.25)
    rule.select(at([1, 2, 3, 4]), Random(0))
    selections = rule.select(at([0.5, 1.5, 2.5, 3.5], [1, 1, 1, 1]), Random(0))
    assert [f.donor is not None for f in selections] == [i < forked for i in range(4)]


def test_the_present_state_of_a_better_member_is_copied_as_it_is():
    rule = Backtrack(min_population=3, quantile=0.6, pool=0.25)
    rule.select(at([1, 2, 3, 4]), Random(0))
    selections = rule.select(at([1, 2, 3, 9], [1, 1, 1, 1]), Random(0))
    assert (selections[0].donor, selections[0].donor_generation) == (3, None)
    assert selections[3].renew
    assert rule.remembers() == {(0, 0), (1, 0), (2, 0), (3, 1)}, "its older state is needed by nobody"


def test_a_young_member_is_judged_by_what_others_reached_at_its_depth():
    rule = Backtrack(min_population=3, quantile=0.6, pool=0.25)
    members = at([1, 2, 3, 4])
    rule.select(members, Random(0), {1, 2, 3})
    rule.select(at([1, 20, 30, 40], [0, 1, 1, 1]), Random(0), {1, 2, 3})
    assert (3, 0) in rule.remembers(), "member 0 may still need it"
    (young,) = rule.select(at([0.5, 20, 30, 40], [0, 2, 2, 2]), Random(0), {0})
    assert (young.donor, young.donor_generation) == (3, 0)
    rule.select(at([1, 20, 30, 40], [1, 2, 2, 2]), Random(0), {0})
    assert (3, 0) not in rule.remembers(), "everyone is past that depth"


def test_backtrack_remembers_no_more_however_far_apart_members_are():
    """One half takes part in every comparison, the other in every second; all get better all the time."""
    rule = Backtrack()
    held = []
    for t in range(120):
        members = [member(i, (float(t),), generation=t) for i in range(8)]
        rule.select(members, Random(0), deciding=range(8 if t % 2 else 4))
        held.append(len(rule.remembers()))
    assert max(held) == max(held[:40])


class Fixed:
    def __init__(self, **words):
        self.words = words

    def select(self, members, rng, deciding=None):
        return [
            Selection(m.member, **{"donor": None, "mutate": False, "reason": "x"} | self.words)
            for m in members
        ]


def test_a_pipeline_stops_at_the_first_later_or_copy():
    members = scored([1, 2])

    def first(*rules):
        return ExploitPipeline(rules).select(members, Random(0))[0]

    copy, later, quiet, loud = Fixed(donor=1), Fixed(later=True), Fixed(), Fixed(mutate=True)
    assert first(quiet, copy, later).donor == 1
    assert first(later, copy).later
    assert first(later, copy).donor is None
    assert first(quiet, loud).mutate
    assert not first(loud, quiet).mutate
    assert first(Fixed(renew=True), quiet).renew


def test_a_broken_member_has_no_objective():
    assert math.isnan(score(member(0, (5.0,), broken=True)))
    assert math.isnan(score(member(0, ())))
    assert score(member(0, (5.0, 7.0))) == mean_objective((5.0, 7.0)) == 6.0


# -- Welch's t-test -----------------------------------------------------------------------------------------

samples = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=12)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(samples, samples)
def test_welch_is_scipys(a, b):
    ours = welch_p(a, b)
    if len(set(a)) == len(set(b)) == 1:
        assert ours == (1.0 if a[0] == b[0] else 0.0)
    else:
        assert ours == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-6, abs=1e-12)


@given(st.floats(0.5, 200), st.floats(0, 1 - 1e-9, allow_subnormal=False))
def test_the_incomplete_beta_function_is_scipys(a, x):
    assert incomplete_beta(a, 0.5, x) == pytest.approx(special.betainc(a, 0.5, x), rel=1e-9, abs=1e-300)


def test_welch_at_the_ends():
    assert welch_p([1.0], [5.0, 6.0]) == 1.0, "one value has no variance"
    assert welch_p([0.0, 0.0], [0.0, 0.0]) == 1.0
    assert welch_p([1e308, 1.1e308], [-1e308, -1.1e308]) < 0.01, "squares overflow"
