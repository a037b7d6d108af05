"""Welch's t-test against scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from pbt_rl.controllers.exploit_published import incomplete_beta, welch_p
from tests.helpers import populations  # noqa: F401 - its hypothesis profile

samples = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=12)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(samples, samples)
def test_welch_is_scipys(a, b):
    ours = welch_p(a, b)
    if len(set(a)) == len(set(b)) == 1:
        assert ours == (1.0 if a[0] == b[0] else 0.0)
    else:
        assert ours == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-6, abs=1e-12)


@given(st.floats(0.5, 200), st.floats(0, 1, allow_subnormal=False))
def test_the_incomplete_beta_function_is_scipys(a, x):
    assert incomplete_beta(a, 0.5, x) == pytest.approx(special.betainc(a, 0.5, x), rel=1e-9, abs=1e-300)


def test_welch_at_the_ends():
    assert welch_p([1.0], [5.0, 6.0]) == 1.0, "one value has no variance"
    assert welch_p([0.0, 0.0], [0.0, 0.0]) == 1.0
    assert welch_p([1e308, 1.1e308], [-1e308, -1.1e308]) < 0.01, "squares overflow"
