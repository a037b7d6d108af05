"""Declares what knows whether more threads want cores than there are."""

from __future__ import annotations

WITHOUT_TORCH = True
CONTENDED = "pbt_rl.contention.watch:Contention"
"""See `learner.sampler.Sampler`."""
