"""Declares the typed events of journals, for whatever reads them."""

from __future__ import annotations

WITHOUT_TORCH = True
