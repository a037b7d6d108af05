"""Population-based training of anything that trains."""

from __future__ import annotations

WITHOUT_TORCH = True
