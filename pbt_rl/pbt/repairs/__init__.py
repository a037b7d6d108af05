"""Repairs of members that cannot learn any more, as Orion's PBT repairs broken trials."""
