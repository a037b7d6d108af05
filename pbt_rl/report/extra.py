"""HTML pages of runs, and their figures."""

from __future__ import annotations

WITHOUT_TORCH = True

FIGURES = "pbt_rl.report.images"
"""The process that draws figures for TensorBoard (`display.drawing`)."""
