"""Films of evaluations: `pbt-rl eval --video`, `--evaluate-video`."""

from __future__ import annotations

FILMS = "pbt_rl.video.film"
"""See `play.member.film_maker`."""
ASKED = ("eval runs/x --video x.mp4",)
"""Command lines that ask for it."""
