"""Declares what stands in TensorBoard besides the numbers: figures, charts by subject, the table of start values."""

from __future__ import annotations

WITHOUT_TORCH = True
CHARTS = "pbt_rl.charts.charts:Charts"
"""See `display.tensorboard.Charts`."""
