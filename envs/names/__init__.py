"""Ids that name no environment as they are: those of other packages, and what unknown ones may have meant."""

from .meant import atari_game, meant
from .packages import named_by, registered

__all__ = ["atari_game", "meant", "named_by", "registered"]
