"""Declares what makes learners faster on a GPU: CUDA graphs, streams, a trial of packings."""

from __future__ import annotations

ACCELERATES = "pbt_rl.graphs.device:CudaAcceleration"
"""See `learner.acceleration.Acceleration`."""
ASKED = ()
"""Command lines that ask for it: none, it is used where there is a GPU."""
