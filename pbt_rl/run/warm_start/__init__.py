"""Runs whose members begin from what other runs have learned."""
