"""What extras read of a journal, for tests of the core: these are left out where the extra is not there."""

import pytest


def audit(run):
    """See `pbt_rl.report.audit`."""
    return pytest.importorskip("pbt_rl.report.audit.recorded").audit(run)
