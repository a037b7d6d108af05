"""Turns: members that share slots, or leave them while they wait or train no more."""
