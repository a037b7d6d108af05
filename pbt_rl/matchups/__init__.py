"""Matchups: members that play each other in environments of several agents."""
