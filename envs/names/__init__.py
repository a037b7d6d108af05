"""Ids that name no environment as they are: those of other packages, and what unknown ones may have meant."""

from .meant import attribute, instead, meant
from .packages import named_by, registered

__all__ = ["attribute", "instead", "meant", "named_by", "registered"]
