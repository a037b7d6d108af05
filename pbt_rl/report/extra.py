"""HTML pages of runs, and their figures."""

from __future__ import annotations

WITHOUT_TORCH = True
