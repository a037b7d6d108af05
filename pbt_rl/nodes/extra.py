"""Populations over the nodes of a cluster."""

from __future__ import annotations
