"""What extras read of a journal, for tests of the core: these are left out where the extra is not there."""

import pytest


def audit(run):
    """See `pbt_rl.audit`."""
    return pytest.importorskip("pbt_rl.audit.recorded").audit(run)


def audit_decisions(*arguments):
    """See `pbt_rl.pbt.history`."""
    return pytest.importorskip("pbt_rl.pbt.history.decide").audit_decisions(*arguments)


def lineage():
    """Return the class `Lineage`."""
    return pytest.importorskip("pbt_rl.pbt.history.lineage").Lineage
